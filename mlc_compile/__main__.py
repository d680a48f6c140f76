"""The console script, `mlc-compile`; so is `python -m mlc_compile`."""

import signal


def main() -> None:
    """Run the command line.

    Ctrl-C while it is imported, which takes some tenths of a second, is told as at any other time.
    """
    early: list[int] = []
    # Another handler is that of whoever started this, and wants no interrupts.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, lambda number, _frame: early.append(number))
    from mlc_compile.cli.app import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run(interrupted=bool(early))


if __name__ == "__main__":
    main()
