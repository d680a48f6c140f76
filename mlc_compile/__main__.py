"""The console script, `mlc-compile`; so is `python -m mlc_compile`."""

import signal


def main() -> None:
    """Run the command line.

    Ctrl-C while it is imported, which takes some tenths of a second, is told as at any other time.
    """
    early: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else whoever started this wants no interrupts
        signal.signal(signal.SIGINT, lambda number, _frame: early.append(number))
    from mlc_compile.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    run(interrupted=bool(early))


if __name__ == "__main__":
    main()
