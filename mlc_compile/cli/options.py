"""Options that several commands share, and how a list of numbers is written in one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.errors import ConfigError, near_matches

if TYPE_CHECKING:
    from mlc_compile.driver.compile import Options
    from mlc_compile.target import Target

NOT_UTF8: Final = "surrogateescape"  # as Python reads arguments; the tokenizer refuses it in words

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
Quant = Annotated[str, typer.Option("-q", "--quant", help="Quantization scheme.")]
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


def targets_named(names: str) -> "tuple[Target, ...]":
    """The targets of a comma-separated list, each once, in order."""
    from mlc_compile.target import find_target

    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise ConfigError("--target names no target", hint="see `mlc-compile targets`")
    return tuple(find_target(name) for name in wanted)


def library_options(
    context: int | None, prefill_chunk: int | None, kv_dtype: str | None
) -> "Options":
    """The options of a library as the driver takes them."""
    from mlc_compile.driver.compile import KV_DTYPES, Options

    if kv_dtype is not None and kv_dtype not in KV_DTYPES:
        raise ConfigError(f"no KV cache type {kv_dtype!r}", hint=near_matches(kv_dtype, KV_DTYPES))
    return Options(context, prefill_chunk, None if kv_dtype is None else KV_DTYPES[kv_dtype])


def numbers(text: str, option: str) -> tuple[int, ...]:
    """`"128,512"` -> (128, 512), each 0 or more; the empty text is no number."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not all(item.isdecimal() for item in items):
        raise ConfigError(
            f"{option} must be numbers separated by commas, got {text!r}",
            hint=f"for example {option} 128,512",
        )
    return tuple(int(item) for item in items)
