"""What typer complains about, as a sentence of ours and a hint."""

import re
from collections.abc import Sequence
from typing import Final

import typer
from typer.core import TyperOption

from mlc_compile.errors import did_you_mean

COMMON_OPTIONS: Final = ("--json", "--quiet", "-q", "--cache-dir", "--traceback")
SUGGESTION: Final = re.compile(
    r"(?P<complaint>.*)(\. Did you mean | \(Possible options: )(?P<names>[^(]*)[?)]"
)
NAME: Final = re.compile(r"[\w-]+")
# pydantic's kinds of error, by which typer reads numbers: what the value must be.
KINDS: Final = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
}
BOUNDS: Final = ("greater_than_equal", "less_than_equal")
EMPTY: Final = "value_error"  # what pydantic calls `filled`'s
INSTEAD: Final = {  # of an empty path, by what the help calls it
    "MODEL": "give a model directory, or . for this one",
    "DIR": "give an artifact's directory, or . for this one",
}


def explained(
    error: typer.TyperException, arguments: Sequence[str], command: Sequence[str]
) -> tuple[str, str]:
    """The message and the hint for `error`; `command` is its name in `arguments`, a word each."""
    message, hint = _sentence(error.format_message()), ""
    if isinstance(error, typer.BadParameter):
        message, hint = _about_value(error) or (message, "")
    elif (found := SUGGESTION.fullmatch(message)) is not None:
        message, hint = found["complaint"], did_you_mean(NAME.findall(found["names"]))
    name = " ".join(["mlc-compile", *command])
    early = _early(arguments, command)
    if early and early in message:
        hint = f"put {early} after the command: {name} ... {early}"
    return message, hint or f"see {name} --help"


def _about_value(error: typer.BadParameter) -> tuple[str, str] | None:
    """What a value must be, and an own hint or none; None for any other complaint."""
    from pydantic import ValidationError

    cause, parameter = error.__cause__, error.param
    if not isinstance(cause, ValidationError) or parameter is None:
        return None
    first = cause.errors()[0]
    name = parameter.metavar if parameter.param_type_name == "argument" else None
    name = name or max(parameter.opts, key=len)
    if first["type"] == EMPTY:
        return f"{name} is empty", INSTEAD.get(name, "give a path")
    must = KINDS.get(first["type"])
    if first["type"] in BOUNDS and isinstance(parameter, TyperOption):
        least, most = parameter.min, parameter.max
        must = f"{least} or more" if most is None else f"{least} to {most}"
    return None if must is None else (f"{name} must be {must}, got {_shown(first['input'])}", "")


def _shown(value: object) -> str:
    """A number as it is, anything else in quotes."""
    return str(value) if re.fullmatch(r"[-+]?[0-9.]+", str(value)) else repr(value)


def _early(arguments: Sequence[str], command: Sequence[str]) -> str | None:
    """The first common option that stands before the command."""
    before = arguments[: arguments.index(command[-1])] if command else ()
    return next((flag for flag in map(_flag, before) if flag in COMMON_OPTIONS), None)


def _flag(argument: str) -> str:
    return argument.partition("=")[0]


def _sentence(message: str) -> str:
    """Typer's message in the form of ours: no capital, no final stop."""
    return message[:1].lower() + message[1:].removesuffix(".")
