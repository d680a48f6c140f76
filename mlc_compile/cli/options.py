"""Options that several commands share, and what they stand for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from mlc_compile.cli.values import filled, size
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.cache import Store
    from mlc_compile.driver.job import Options
    from mlc_compile.driver.lockfile import Lock
    from mlc_compile.records import RecordStore
    from mlc_compile.target import Target

NOT_UTF8: Final = "surrogateescape"  # as Python reads arguments; the tokenizer refuses it in words

# For the help alone: the tables that decide load numpy.
QUANTS: Final = ("q4f16_1", "q4f32_1", "q0f16", "q0f32")
KV_TYPES: Final = ("float16", "float32", "int8")
ACTIVATION_TYPES: Final = ("float32", "int8", "bfloat16")

TARGET_HELP: Final = (
    "What to compile for: see `mlc-compile targets`; a+b puts both libraries into one artifact; "
    "the best one that the CPU supports is loaded."
)

T = TypeVar("T")

Artifact = Annotated[
    Path, typer.Argument(metavar="DIR", help="Artifact directory, as `build` wrote it.")
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to compute with.", show_default="the fast physical cores"),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated."),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        parser=filled,
        help="Hugging Face model directory, or `demo` for the example.",
    ),
]
Quant = Annotated[str, typer.Option("--quant", help=f"Quantization scheme: {', '.join(QUANTS)}.")]
TargetQuant = Annotated[
    str | None,
    typer.Option(
        "--quant",
        help=f"Quantization scheme: {', '.join(QUANTS)}.",
        show_default="q4f16_1; q4f32_1 where the target has no float16",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        help=f"{TARGET_HELP} Several: separate them with commas, or repeat the option.",
        show_default="cpu",
    ),
]
OneTarget = Annotated[
    list[str] | None,  # so that a second one is refused, and does not replace the first
    typer.Option(
        "-t",
        "--target",
        help=TARGET_HELP,
        show_default="cpu",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help="Longest sequence, in tokens.", show_default="4096, or the model's limit"
    ),
]
PrefillChunk = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum tokens per prefill call.", show_default="512"),
]
KVType = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        help=f"Type of the KV cache: {', '.join(KV_TYPES)}; int8 is for CPUs and takes half the "
        "memory of float16.",
        show_default="the scheme's",
    ),
]

ActivationType = Annotated[
    str | None,
    typer.Option(
        "--activations",
        help=f"What INT4 weights are multiplied by: {', '.join(ACTIVATION_TYPES)}; bfloat16 needs "
        "a CPU with AMX and is for prompts and their attention, with int8 for the rest.",
        show_default="the fastest that the target has",
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        "--memory-budget",
        metavar="SIZE",
        help="Maximum memory for run and chat, for example 1.5GiB; context and prefill chunk are "
        "then the largest that fit.",
    ),
]
DisabledPasses = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-pass",
        metavar="NAME",
        help="Leave out an optimization: see `mlc-compile passes`; may be repeated.",
    ),
]
DumpIR = Annotated[
    Path | None,
    typer.Option(
        "--dump-ir",
        metavar="DIR",
        help="Write TVMScript to DIR after every phase, and after every pass that changed it.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Rebuild everything; neither read nor write the build cache."),
]
Locked = Annotated[
    bool,
    typer.Option("--locked", help="Fail if a step is not in the cache, and say what differs."),
]
Lockfile = Annotated[
    Path | None,
    typer.Option(
        "--lockfile",
        metavar="FILE",
        help="Fail if the build differs from its entry in FILE, such as mlc-compile.lock: "
        "checkpoint, options, tuning records, tools, results. A build without one is added.",
    ),
]
UpdateLock = Annotated[
    bool,
    typer.Option(
        "--update-lock", help="Update the lock file to match this build instead of failing."
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        "--tune",
        metavar="TIME",
        help="First tune the model's kernels on this machine for this long, for example 20m.",
    ),
]
CACHE_SIZE: Final = "20GiB"
CACHE_SIZE_VARIABLE: Final = "MLC_COMPILE_CACHE_SIZE"


def _checked_size(context: typer.Context, parameter: typer.CallbackParam, text: str) -> str:
    """`text`, if it is a size; a ConfigError names the variable where the text is from there."""
    source = context.get_parameter_source(parameter.name or "")
    from_variable = source is not None and source.name == "ENVIRONMENT"
    size(text, f"{CACHE_SIZE_VARIABLE}=" if from_variable else parameter.opts[0])
    return text


CacheSize = Annotated[
    str,
    typer.Option(
        "--cache-size",
        metavar="SIZE",
        envvar=CACHE_SIZE_VARIABLE,
        callback=_checked_size,
        help="Size limit of the build cache; least recently used entries are removed first.",
    ),
]
SizeToKeep = Annotated[
    str,
    typer.Option(
        "--cache-size",
        metavar="SIZE",
        envvar=CACHE_SIZE_VARIABLE,
        callback=_checked_size,
        help="Size to shrink the build cache to, such as 10GiB.",
    ),
]
OldSizeToKeep = Annotated[
    str | None, typer.Option("--max-size", metavar="SIZE", hidden=True)  # its name before
]


def scheme_for(asked: str | None, targets: "Sequence[Target]") -> str:
    """The scheme that is asked for, or the one that all targets are built with by default."""
    if asked is not None:
        return asked
    schemes = dict.fromkeys(target.quant for target in targets)
    if len(schemes) > 1:
        told = ", ".join(f"{target.name} {target.quant}" for target in targets)
        raise ConfigError(
            f"the targets have different default schemes: {told}",
            hint="name one with --quant, or build them apart",
        )
    return next(iter(schemes))


def targets_named(given: Sequence[str] | None) -> "tuple[Target, ...]":
    """The targets of comma-separated lists, each once, in order; None: this machine's."""
    from mlc_compile.target import HOST, VARIANT, find_target

    names = (HOST,) if given is None else ",".join(given).split(",")
    wanted = dict.fromkeys(name.strip() for name in names if name.strip())
    if not wanted:
        raise ConfigError("--target names no target", hint="see `mlc-compile targets`")
    for name in wanted:
        first, *others = name.split(VARIANT)
        if not first or not all(others):
            side = "after" if first else "before"
            raise ConfigError(
                f"no target {side} {VARIANT!r} in {name!r}", hint="for example cpu-x86-64-v3+v4"
            )
    return tuple(find_target(name) for name in wanted)


def one_target(given: Sequence[str] | None) -> "Target":
    """The only target named; ConfigError if there are several."""
    targets = targets_named(given)
    if len(targets) > 1:
        raise ConfigError(
            f"one target at a time, got {', '.join(t.name for t in targets)}",
            hint="mlc-compile build takes several",
        )
    return targets[0]


def library_options(
    context: int | None,
    prefill_chunk: int | None,
    kv_dtype: str | None,
    activations: str | None,
    memory_budget: str | None = None,
    disabled: Sequence[str] | None = None,
) -> "Options":
    """The options of a library as the driver takes them."""
    from mlc_compile.driver.job import ACTIVATIONS, KV_DTYPES, Options
    from mlc_compile.passes.catalog import check_disabled

    return Options(
        context,
        prefill_chunk,
        _one_of(KV_DTYPES, kv_dtype, "KV cache type"),
        _one_of(ACTIVATIONS, activations, "activation type"),
        None if memory_budget is None else size(memory_budget, "--memory-budget"),
        check_disabled(disabled or ()),
    )


def _one_of(known: Mapping[str, T], name: str | None, what: str) -> T | None:
    if name is None:
        return None
    if name not in known:
        raise ConfigError(f"no {what} {name!r}", hint=f"one of {', '.join(known)}")
    return known[name]


def open_store(cache_dir: Path, cache_size: str = CACHE_SIZE) -> "Store":
    """The build cache under `cache_dir`, limited to `cache_size`."""
    from mlc_compile.cache import Store

    return Store(cache_dir, size(cache_size, "--cache-size"))


def lock_of(lockfile: Path | None, locked: bool, update: bool) -> "Lock | None":
    """The lock file of a build; ConfigError where the options contradict each other."""
    from mlc_compile.driver.lockfile import NAME, Lock

    if update and lockfile is None:
        raise ConfigError("--update-lock needs a lock file", hint=f"add --lockfile {NAME}")
    if update and locked:
        raise ConfigError("--locked forbids changes, --update-lock asks for them", hint="give one")
    return None if lockfile is None else Lock(lockfile, frozen=locked, update=update)


def open_records(cache_dir: Path) -> "RecordStore":
    """The tuning records under `cache_dir`."""
    from mlc_compile.records import RecordStore

    return RecordStore(cache_dir)
