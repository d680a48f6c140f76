"""What is decided about an artifact before it is made: what was asked, and what follows."""

from dataclasses import dataclass
from typing import Final, Literal

from mlc_compile.artifact import Activations, FlatKV, Limits
from mlc_compile.driver.subject import Subject
from mlc_compile.emit.link.linker import Linker
from mlc_compile.errors import ConfigError, TargetError
from mlc_compile.model.config import Qwen3Config
from mlc_compile.quant import find_scheme, has_codes
from mlc_compile.records import NOTHING, Chosen, RecordStore, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import INT8_DOT_FEATURES, KVKind, Target

# Tokens of a KV page. Flat: a row of the transposed keys is one cache line of float16, and
# little is read past the last token. TVM's: what MLC's and web-llm's runtimes pass.
PAGES: Final[dict[KVKind, int]] = {"flat": 32, "tvm_paged": 16}
KVDtype = Literal["float16", "float32"]
ACTIVATIONS: Final[dict[str, Activations]] = {"int8": "int8", "float32": "float32"}
KV_DTYPES: Final[dict[str, KVDtype]] = {"float16": "float16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may decide about a library beyond model, scheme and target."""

    context: int | None = None  # tokens; by default 4096, or the model's limit if lower
    prefill_chunk: int | None = None  # tokens a prefill call takes at most
    kv_dtype: KVDtype | None = None  # by default what the scheme stores norms in
    activations: Activations | None = None  # by default int8 where the target can
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

    def chosen(self, row: Target) -> Chosen:
        """What was tuned for one library of the target."""
        if not self.records:
            return NOTHING
        return self.records[self.target.libraries.index(row)]


def require_float16(target: Target, quant: str) -> None:
    """TargetError if `quant` stores float16 and the target's device has none."""
    device = target.device
    if device is not None and not device.f16 and find_scheme(quant).norm_dtype == "float16":
        raise TargetError(
            f"target {target.name} has no float16, in which scheme {quant} stores its scales",
            hint=f"use --quant {target.quant}",
        )


def choose_kv(config: Qwen3Config, target: Target, quant: str, options: Options) -> FlatKV:
    """The cache's shape; its type follows the scheme's precision unless it is asked for."""
    return FlatKV(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        page=PAGES[target.kv],
        dtype=options.kv_dtype or find_scheme(quant).norm_dtype,
    )


def choose_activations(target: Target, quant: str, options: Options) -> Activations:
    """int8 where weights are integers and the target multiplies such, or what is asked for.

    Raises ConfigError or TargetError if int8 is asked for and one of them is not so.
    """
    if not has_codes(find_scheme(quant)):
        if options.activations == "int8":
            raise ConfigError(
                f"scheme {quant} has no integers to multiply int8 activations by",
                hint="use --activations float32, or a q4 scheme",
            )
        return "float32"
    able = all(row.int8_dot for row in target.libraries)
    if options.activations == "int8" and not able:
        raise TargetError(
            f"target {target.name} has no int8 dot product: "
            f"it needs {' or '.join(INT8_DOT_FEATURES)}",
            hint="use --activations float32, or a target with one (see `mlc-compile targets`)",
        )
    return options.activations or ("int8" if able else "float32")


def choose_records(target: Target, store: RecordStore | None) -> tuple[Chosen, ...]:
    """What tuning chose for each of the target's libraries, as the store stands now.

    Empty without a store or a record. Raises EnvironmentError_ where the store cannot be read.
    """
    if store is None:
        return ()
    cores = available_cores()
    chosen = tuple(store.chosen(partition_of(row, cores)) for row in target.libraries)
    return chosen if any(one.records for one in chosen) else ()
