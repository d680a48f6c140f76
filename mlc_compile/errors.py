"""Everything that can go wrong for a reason outside our code, with its exit code.

    MlcError                  1   our own bug; bare only where a process of ours died of one
    ├── ConfigError           2   usage: options, scheme and target names, limits
    ├── CheckpointError       3   the model directory is not what it must be
    ├── TargetError           4   target or toolchain: wrong CPU, no linker, over a limit
    ├── TuningError           5   tuning measured nothing
    ├── DamageError           6   cache, records or artifact damaged
    └── EnvironmentError_     7   disk full, read-only, permission

The command line catches `MlcError` once, prints `error: <message>` and `hint: <hint>`,
and exits with the class's code; an interrupt exits with 130.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class MlcError(Exception):
    """A failure to be told in one sentence; `hint` says what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(MlcError):
    """The request itself cannot be carried out: an option, a name, a limit."""

    exit_code = 2


class CheckpointError(MlcError):
    """The weights, config or tokenizer on disk are not what the model needs."""

    exit_code = 3


class TargetError(MlcError):
    """The target cannot be emitted, linked or run here."""

    exit_code = 4


class TuningError(MlcError):
    """Tuning ended without one valid measurement."""

    exit_code = 5


class DamageError(MlcError):
    """A file that we once wrote no longer says what we wrote."""

    exit_code = 6


class EnvironmentError_(MlcError):
    """The machine refuses: disk full, read-only file system, permission."""

    exit_code = 7


def error_class(exit_code: int) -> type[MlcError]:
    """The class whose failures exit with `exit_code`; MlcError itself for any other."""
    return next((c for c in MlcError.__subclasses__() if c.exit_code == exit_code), MlcError)


def near_matches(name: str, known: Iterable[str]) -> str:
    """A hint that lists what `name` may have meant, closest first, else all that is known."""
    choices = sorted(known)
    close = difflib.get_close_matches(name.lower(), choices, n=3, cutoff=0.5)
    return did_you_mean(close) if close else f"one of {', '.join(choices)}"


def did_you_mean(names: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'?`: a hint."""
    return f"did you mean {' or '.join(map(repr, names))}?"


def listing(items: Iterable[str], limit: int = 5) -> str:
    """`a, b, c, d, e and 7 more`: the first `limit` items in order, then a count."""
    everything = list(items)
    shown = ", ".join(everything[:limit])
    rest = len(everything) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def count(number: int, thing: str) -> str:
    """`1 core`, `2 cores`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def last_line(said: str, otherwise: str) -> str:
    """The last line that a program said before it failed; `otherwise` if it said nothing."""
    return said.strip().rpartition("\n")[2] or otherwise
