"""What is decided about an artifact before it is made: what was asked, and what follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from mlc_compile.artifact import Activations, FlatKV, KVDtype, Limits
from mlc_compile.driver.subject import Subject
from mlc_compile.emit.link.linker import Linker
from mlc_compile.errors import ConfigError, TargetError, listing
from mlc_compile.model.config import Qwen3Config
from mlc_compile.quant import find_scheme, has_codes
from mlc_compile.records import NOTHING, Chosen, RecordStore, Workload, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import BF16_TILE_FEATURES, INT8_DOT_FEATURES, KVKind, Target

# Tokens of a KV page. Flat: a row of the transposed keys is one cache line of float16, and
# little is read past the last token. TVM's: what MLC's and web-llm's runtimes pass.
PAGES: Final[dict[KVKind, int]] = {"flat": 32, "tvm_paged": 16}
# Types of a cache. TVM's has one for queries, keys and values alike, which no codes are.
OFFERED: Final[dict[KVKind, tuple[KVDtype, ...]]] = {
    "flat": ("float16", "float32", "int8"),
    "tvm_paged": ("float16", "float32"),
}
ACTIVATIONS: Final[dict[str, Activations]] = {a: a for a in get_args(Activations)}
KV_DTYPES: Final[dict[str, KVDtype]] = {dtype: dtype for dtype in OFFERED["flat"]}

# Library -> the workloads of which it looks for a tuning record.
Questions = Mapping[str, tuple[Workload, ...]]


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may decide about a library beyond model, scheme and target."""

    context: int | None = None  # tokens; by default 4096, or the model's limit if lower
    prefill_chunk: int | None = None  # tokens a prefill call takes at most
    kv_dtype: KVDtype | None = None  # by default what the scheme stores norms in
    activations: Activations | None = None  # by default the fastest that the target has
    memory_budget: int | None = None  # bytes that generating may take; it then decides the limits
    disabled: tuple[str, ...] = ()  # passes to leave out, as passes.catalog.check_disabled gives


DEFAULTS: Final = Options()


@dataclass(frozen=True, slots=True)
class Job:
    """An artifact to make, and all that was decided about it."""

    subject: Subject
    target: Target
    quant: str
    limits: Limits
    kv: FlatKV
    activations: Activations
    linker: Linker
    device_compiler: str
    disabled: tuple[str, ...] = ()  # passes to leave out
    records: tuple[Chosen, ...] = ()  # what was tuned for each library; empty: nothing was
    questions: Questions | None = None  # which of these count; None: that is not known yet

    def chosen(self, row: Target) -> Chosen:
        """What was tuned for one library of the target."""
        if not self.records:
            return NOTHING
        return self.records[self.target.libraries.index(row)]

    @property
    def is_settled(self) -> bool:
        """Whether it is known which records count."""
        return not self.records or self.questions is not None

    def counted(self, row: Target) -> Chosen:
        """Of what was tuned for one library, all that can decide about it."""
        assert self.is_settled, "it was not compiled yet"
        return self.chosen(row).about((self.questions or {}).get(row.name, ()))


def require_float16(target: Target, quant: str) -> None:
    """TargetError if `quant` stores float16 and the target's device has none."""
    device = target.device
    if device is not None and not device.f16 and find_scheme(quant).norm_dtype == "float16":
        raise TargetError(
            f"target {target.name} has no float16, in which scheme {quant} stores its scales",
            hint=f"use --quant {target.quant}",
        )


def choose_kv(config: Qwen3Config, target: Target, quant: str, options: Options) -> FlatKV:
    """The cache's shape; its type follows the scheme's precision unless it is asked for.

    Raises ConfigError for a type that the target's kind of cache cannot have.
    """
    dtype = options.kv_dtype or find_scheme(quant).norm_dtype
    offered = OFFERED[target.kv]
    if dtype not in offered:
        raise ConfigError(
            f"the KV cache of target {target.name} must be {' or '.join(offered)}, got {dtype}",
            hint=f"leave --kv-dtype out; {dtype} is for CPUs",
        )
    return FlatKV(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        page=PAGES[target.kv],
        dtype=dtype,
    )


def choose_activations(target: Target, quant: str, options: Options) -> Activations:
    """What is asked for, or the fastest that one of the target's libraries multiplies codes by.

    The others come as near as they can: see `library_activations`. Raises ConfigError or
    TargetError if what is asked for needs such weights, or such a target.
    """
    asked = options.activations
    if not has_codes(find_scheme(quant)):
        if asked not in {None, "float32"}:
            raise ConfigError(
                f"scheme {quant} has no integers to multiply {asked} activations by",
                hint="use --activations float32, or a q4 scheme",
            )
        return "float32"
    able = any(row.int8_dot for row in target.libraries)
    tiles = any(row.bf16_tiles for row in target.libraries)
    if asked == "bfloat16" and not tiles:
        raise TargetError(
            f"target {target.name} has no tiles of bfloat16: "
            f"it needs {listing(BF16_TILE_FEATURES)}",
            hint="leave --activations out, or use a target with them (see `mlc-compile targets`)",
        )
    if asked in {"int8", "bfloat16"} and not able:
        raise TargetError(
            f"target {target.name} has no int8 dot product: "
            f"it needs {' or '.join(INT8_DOT_FEATURES)}",
            hint="use --activations float32, or a target with one (see `mlc-compile targets`)",
        )
    fastest: Activations = "bfloat16" if tiles else "int8"
    return asked or (fastest if able else "float32")


def library_activations(target: Target, chosen: Activations) -> Activations:
    """What the library for `target` multiplies codes by, of what was chosen for all."""
    if chosen == "bfloat16" and target.bf16_tiles:
        return "bfloat16"
    return "float32" if chosen == "float32" or target.int8_dot is None else "int8"


def single_row(activations: Activations) -> Activations:
    """What a library that takes `activations` multiplies a single row as: tiles are for many."""
    return "int8" if activations == "bfloat16" else activations


def choose_records(target: Target, store: RecordStore | None) -> tuple[Chosen, ...]:
    """What tuning chose for each of the target's libraries, as the store stands now.

    Empty without a store or a record. Raises EnvironmentError_ where the store cannot be read.
    """
    if store is None:
        return ()
    cores = available_cores()
    chosen = tuple(store.chosen(partition_of(row, cores)) for row in target.libraries)
    return chosen if any(one.records for one in chosen) else ()
