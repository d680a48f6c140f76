"""The options of `run` and `chat` that say how the next token is chosen."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from mlc_compile.runtime.ranges import RANGES

PANEL: Final = "Sampling"

# By the fields of `Asked`: the type, and what the option does.
OPTIONS: Final[dict[str, tuple[type, str]]] = {
    "temperature": (float, "How evenly to sample"),
    "top_k": (int, "Sample among the k likeliest"),
    "top_p": (float, "Sample among the likeliest that make up this share"),
    "min_p": (float, "Leave out what is less likely than this share of the likeliest"),
    "presence_penalty": (float, "Taken off the logit of every token generated before"),
    "frequency_penalty": (float, "The same for each time that it was"),
    "repetition_penalty": (float, "Divides the logit of every token of prompt and answer"),
    "seed": (int, "Equal seeds, equal text"),
}


def sampling_options(
    left_open: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `Asked` in place of its keyword `sampling`.

    `left_open` says in the help what decides where nothing is asked: "" is that nothing changes.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(*args: object, **given: Any) -> None:
            from mlc_compile.runtime.sampler import Asked

            asked = Asked(**{name: given.pop(name) for name in OPTIONS})
            command(*args, sampling=asked, **given)

        parameters = inspect.signature(command).parameters
        own = [each for name, each in parameters.items() if name != "sampling"]
        added = [_parameter(name, left_open) for name in OPTIONS]
        with_options.__dict__["__signature__"] = inspect.Signature([*own, *added])
        return with_options

    return decorate


def _parameter(name: str, left_open: str) -> inspect.Parameter:
    kind, does = OPTIONS[name]
    allowed = RANGES[name]
    neutral = None if allowed.neutral is None else f"{allowed.neutral:g}"
    option = typer.Option(
        help=f"{does}, {allowed.rule}{'' if neutral is None else f'; {allowed.remark}'}.",
        show_default="random" if neutral is None else left_open or neutral,
        rich_help_panel=PANEL,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )
