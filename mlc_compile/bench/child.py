"""Run one of our modules in a process of its own: arguments and JSON in, JSON out.

A module that is run so ends with `serve(answer)`. What it raises comes out of `ask` again as
the same class with the same message and hint: the exit code carries the class, stderr the rest.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from signal import SIGKILL
from typing import TypeVar

import msgspec

from mlc_compile.errors import EnvironmentError_, MlcError, error_class, last_line
from mlc_compile.runtime.child import command, environment

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """What a process that failed says on the last line of stderr."""

    error: str
    hint: str


def ask(
    module: str,
    answer: type[T],
    doing: str,
    *,
    question: object = None,
    arguments: Sequence[str] = (),
) -> T:
    """Run `module` with `question` as JSON on its stdin; its stdout decoded as `answer`.

    `doing` begins the sentence where the process died without one: "measuring X". Raises what
    the module raised, EnvironmentError_ where a signal ended it, MlcError where it is our bug.
    """
    done = subprocess.run(
        command(module, *arguments),
        input=msgspec.json.encode(question),
        env=environment(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise _failure(done.returncode, done.stderr.decode(errors="replace"), doing)
    return msgspec.json.decode(done.stdout, type=answer)


def serve(answer: Callable[[], object]) -> None:
    """Print what `answer` returns as JSON; an error that we foresee as a `Failure`."""
    try:
        result = answer()
    except MlcError as e:
        _fail(str(e), e.hint, e.exit_code)
    except OSError as e:
        reason = (e.strerror or str(e)).lower()
        _fail(f"{e.filename}: {reason}" if e.filename else reason, "", EnvironmentError_.exit_code)
    else:
        sys.stdout.buffer.write(msgspec.json.encode(result))


def _fail(error: str, hint: str, exit_code: int) -> None:
    sys.stderr.buffer.write(msgspec.json.encode(Failure(error, hint)) + b"\n")
    sys.exit(exit_code)


def _failure(code: int, said: str, doing: str) -> MlcError:
    if code < 0:
        return EnvironmentError_(
            f"{doing} was ended by signal {-code}",
            hint="signal 9 mostly means that memory ran out: try fewer tokens"
            if -code == SIGKILL
            else _REPORT,
        )
    line = last_line(said, f"exit code {code}")
    try:
        told = msgspec.json.decode(line, type=Failure)
    except msgspec.DecodeError:  # a traceback
        error = MlcError(f"{doing} failed: {line}", hint=_REPORT)
        error.add_note(said)
        return error
    return error_class(code)(told.error, hint=told.hint)


_REPORT = "report it with the output of `mlc-compile doctor`"
