"""The `mlc-compile` program: its commands, and how a failure becomes a sentence and an exit code.

Commands import what they need inside their functions: `mlc-compile --help` loads neither TVM
nor numpy.
"""

import errno
import inspect as python_inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Annotated, Final

import typer
from typer.main import get_command

from mlc_compile import __version__
from mlc_compile.cli.bench import bench
from mlc_compile.cli.build import build
from mlc_compile.cli.cache import CACHE_COMMANDS
from mlc_compile.cli.chat import chat
from mlc_compile.cli.compile import compile_
from mlc_compile.cli.console import tell_error
from mlc_compile.cli.convert import convert
from mlc_compile.cli.device_server import device_server
from mlc_compile.cli.doctor import doctor
from mlc_compile.cli.eval import eval_
from mlc_compile.cli.inspect import inspect
from mlc_compile.cli.passes import passes
from mlc_compile.cli.run import run
from mlc_compile.cli.targets import targets
from mlc_compile.cli.tune import tune
from mlc_compile.cli.usage import explained
from mlc_compile.cli.verify import verify
from mlc_compile.cli.web import web
from mlc_compile.errors import EnvironmentError_, MlcError
from mlc_compile.tvm_version import PINS, installed

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "build": build,
    "convert": convert,
    "compile": compile_,
    "tune": tune,
    "device-server": device_server,
    "run": run,
    "chat": chat,
    "bench": bench,
    "eval": eval_,
    "inspect": inspect,
    "verify": verify,
    "web": web,
    "targets": targets,
    "passes": passes,
    "doctor": doctor,
}
# Commands of commands: the name, the line of help, and what it holds.
GROUPS: Final[dict[str, tuple[str, dict[str, Callable[..., None]]]]] = {
    "cache": ("The build cache: what it holds, why it missed, keeping it small.", CACHE_COMMANDS),
}

INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141  # as a shell tells of a program that SIGPIPE ended
TRACEBACK_VARIABLE: Final = "MLC_COMPILE_TRACEBACK"

STREAMS: Final = (
    ("stdin", os.O_RDONLY, "r"),
    ("stdout", os.O_WRONLY, "w"),
    ("stderr", os.O_WRONLY, "w"),
)

REMEDIES: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
}
PATH_REMEDIES: Final = {  # another place would not help
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file, not a directory",
}

app = typer.Typer(
    name="mlc-compile",
    help="Compile Qwen3 checkpoints into INT4 libraries, one per device, and run them.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)


def main(*, interrupted: bool = False) -> None:
    """Run the command line, unless it was `interrupted` before, and exit with its code."""
    arguments = sys.argv[1:]
    _replace_closed_streams()
    sys.excepthook = partial(_report_bug, arguments)
    code = _interrupted(arguments) if interrupted else invoke(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again
        code = CLOSED_PIPE
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Python has None for a stream that was closed before it started (`2>&-`)."""
    for name, flags, mode in STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def invoke(arguments: list[str]) -> int:
    """Run one command line; every failure that we foresee is told on stderr. The exit code."""
    # Not `app(...)`: that puts typer's exception hook in place of ours.
    command = get_command(app)
    alone = not arguments or arguments in ([name] for name in GROUPS)
    given = [*arguments, "--help"] if alone else arguments
    try:
        code: int | None = command(given, prog_name="mlc-compile", standalone_mode=False)
    except MlcError as e:
        return _fail(arguments, e, (str(e), e.hint), e.exit_code)
    except typer.TyperException as e:
        told = explained(e, arguments, _name_of_command(arguments))
        return _fail(arguments, e, told, e.exit_code)
    except MemoryError as e:
        told = f"there is not enough memory: {e}", "lower --context, or close other programs"
        return _fail(arguments, e, told, EnvironmentError_.exit_code)
    except SystemExit as e:  # how typer ends when whoever reads stdout is gone
        if isinstance(e.__context__, BrokenPipeError):
            return CLOSED_PIPE
        raise
    except OSError as e:
        path = e.filename2 or e.filename  # of two the second, which was to be written
        where = f"{path}: " if path else ""
        reason = e.strerror or str(e)
        told = where + reason[:1].lower() + reason[1:], _remedy(e, arguments)
        return _fail(arguments, e, told, EnvironmentError_.exit_code)
    return _interrupted(arguments) if code == INTERRUPTED else code or 0


def _fail(arguments: list[str], error: BaseException, told: tuple[str, str], exit_code: int) -> int:
    """Tell a failure and its hint on stderr, as text or with `--json` as one object; the code."""
    message, hint = told
    if _wants_traceback(arguments):
        traceback.print_exception(error)
    if "--json" in arguments:
        _tell_object(message, hint, exit_code)
    else:
        tell_error(message, hint)
    return exit_code


def _tell_object(message: str, hint: str, exit_code: int) -> None:
    """With `--json` the last line on stderr of whatever failed, and with `--quiet` the only one."""
    record = {"error": message, "hint": hint, "exit_code": exit_code}
    sys.stderr.write(json.dumps(record) + "\n")


def _interrupted(arguments: list[str]) -> int:
    if "--json" in arguments:
        _tell_object("interrupted", "", INTERRUPTED)
    else:
        sys.stderr.write("interrupted\n")
    return INTERRUPTED


def _remedy(error: OSError, arguments: list[str]) -> str:
    """What to do about a failure of the system; `-o` is named where the command has it."""
    number = error.errno or 0
    if number in REMEDIES and _takes_out(arguments):
        return f"{REMEDIES[number]}, or write elsewhere with -o"
    return {**REMEDIES, **PATH_REMEDIES}.get(number, "")


def _takes_out(arguments: list[str]) -> bool:
    command = COMMANDS.get(" ".join(_name_of_command(arguments)))
    return command is not None and "out" in python_inspect.signature(command).parameters


def _report_bug(
    arguments: list[str],
    kind: type[BaseException],
    error: BaseException,
    _trace: TracebackType | None,
) -> None:
    """What Python calls for an exception that nothing foresaw; it then exits with 1.

    An interrupt outside a command comes here too; then Python exits as the signal wants.
    """
    if issubclass(kind, KeyboardInterrupt):
        _interrupted(arguments)
        return
    hint = "report it with the output of the same command and --traceback"
    told = (
        f"this is a bug in mlc-compile: {kind.__name__}: {error}",
        "" if _wants_traceback(arguments) else hint,
    )
    _fail(arguments, error, told, MlcError.exit_code)


def _wants_traceback(arguments: list[str]) -> bool:
    return "--traceback" in arguments or os.environ.get(TRACEBACK_VARIABLE, "0") not in {"", "0"}


def _name_of_command(arguments: list[str]) -> list[str]:
    """Its words, such as `["cache", "stats"]`: those that are there."""
    name = next((a for a in arguments if a in COMMANDS or a in GROUPS), None)
    if name is None:
        return []
    if name in COMMANDS:
        return [name]
    after = arguments[arguments.index(name) + 1 :]
    member = next((a for a in after if a in GROUPS[name][1]), None)
    return [name] if member is None else [name, member]


def _print_version(wanted: bool) -> None:
    if wanted:
        tvm = ", ".join(f"{name} {installed(name) or 'missing'}" for name in PINS)
        sys.stdout.write(f"mlc-compile {__version__} ({tvm})\n")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print versions and exit."
        ),
    ] = False,
) -> None:
    """Compile Qwen3 checkpoints into INT4 libraries, one per device, and run them."""


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
for _name, (_help, _commands) in GROUPS.items():
    _group = typer.Typer(help=_help)
    for _member, _command in _commands.items():
        _group.command(_member)(_command)
    app.add_typer(_group, name=_name)
