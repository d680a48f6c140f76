"""Options that several commands share, and how a list of numbers is written in one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from mlc_compile.errors import ConfigError, near_matches

if TYPE_CHECKING:
    from mlc_compile.driver.compile import Options
    from mlc_compile.target import Target

NOT_UTF8: Final = "surrogateescape"  # as Python reads arguments; the tokenizer refuses it in words

T = TypeVar("T")

Artifact = Annotated[
    Path, typer.Argument(metavar="DIR", help="Artifact directory, as `build` wrote it.")
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to compute with.", show_default="the physical cores"),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to generate in one answer.")]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed of the sampler: equal seeds, equal text.", show_default="random"),
]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Hugging Face model directory, or `demo` for ours."),
]
Quant = Annotated[str, typer.Option("--quant", help="Quantization scheme.")]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help="Longest sequence, in tokens.", show_default="4096, or the model's limit"
    ),
]
PrefillChunk = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of one prefill call.", show_default="512"),
]
KVType = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype", help="Type of the KV cache: float16 or float32.", show_default="the scheme's"
    ),
]

ActivationType = Annotated[
    str | None,
    typer.Option(
        "--activations",
        help="What INT4 weights are multiplied by: int8 or float32.",
        show_default="int8 where the target can",
    ),
]


def targets_named(names: str) -> "tuple[Target, ...]":
    """The targets of a comma-separated list, each once, in order."""
    from mlc_compile.target import find_target

    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise ConfigError("--target names no target", hint="see `mlc-compile targets`")
    return tuple(find_target(name) for name in wanted)


def library_options(
    context: int | None, prefill_chunk: int | None, kv_dtype: str | None, activations: str | None
) -> "Options":
    """The options of a library as the driver takes them."""
    from mlc_compile.driver.compile import ACTIVATIONS, KV_DTYPES, Options

    return Options(
        context,
        prefill_chunk,
        _one_of(KV_DTYPES, kv_dtype, "KV cache type"),
        _one_of(ACTIVATIONS, activations, "activation type"),
    )


def _one_of(known: Mapping[str, T], name: str | None, what: str) -> T | None:
    if name is None:
        return None
    if name not in known:
        raise ConfigError(f"no {what} {name!r}", hint=near_matches(name, known))
    return known[name]


def numbers(text: str, option: str) -> tuple[int, ...]:
    """`"128,512"` -> (128, 512), each 0 or more; the empty text is no number."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not all(item.isdecimal() for item in items):
        raise ConfigError(
            f"{option} must be numbers separated by commas, got {text!r}",
            hint=f"for example {option} 128,512",
        )
    return tuple(int(item) for item in items)
