"""`--memory-budget`: the longest prefill chunk and context that fit, or the arithmetic why none.

    weights + KV cache + activations + runtime  <=  budget

for a process that generates, as `run` and `chat` do. Nothing is estimated: the module is
lowered once, and its memory is planned for each candidate chunk, which is what compiling
does. Activations are what TVM's allocator then keeps: every function's storages and results,
in whole pages, and for each thread the largest workspace of a kernel.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mlc_compile.artifact import FlatKV, Limits
from mlc_compile.driver.job import Questions
from mlc_compile.driver.limits import PREFILL_CHUNK
from mlc_compile.emit.backend import emitter_of
from mlc_compile.errors import TargetError
from mlc_compile.target import Target

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.passes.plan_memory import FunctionMemory
    from mlc_compile.pipeline import Plan
    from mlc_compile.records import Workload

MIB: Final = 1 << 20
# Python, TVM's runtime and our code take 105 MiB, a tokenizer of 150k words about 80.
RUNTIME: Final = 224 * MIB
THREADS: Final = 16  # that compute; a run with fewer takes less
ALLOCATOR_PAGE: Final = 4096  # TVM's allocator gives whole pages
LEAST_CHUNK: Final = 16  # tokens; below, a prompt is hardly faster than token by token
SHARE: Final = 8  # a chunk is halved rather than take more than an eighth of the context

GENERATING: Final = ("embed", "prefill", "decode")  # `score` is for eval

# Exports the model for a row of the target and decides its passes.
Importer = Callable[[Target, Limits], "tuple[IRModule, Plan]"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person said, and the most that the model can."""

    budget: int  # bytes
    context: int | None
    prefill_chunk: int | None
    max_context: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a process that generates with a library of these limits."""

    limits: Limits
    weights: int
    kv: int
    activations: int

    @property
    def total(self) -> int:
        """All of it, the runtime included."""
        return self.weights + self.kv + self.activations + RUNTIME

    def told(self) -> str:
        """The sum, written out."""
        return (
            f"weights {_mib(self.weights)} + KV cache {_mib(self.kv)} "
            f"(context {self.limits.context}) + activations {_mib(self.activations)} "
            f"(prefill chunk {self.limits.prefill_chunk}) + runtime {_mib(RUNTIME)} "
            f"= {_mib(self.total)}"
        )


def fit(
    asked: Asked, kv: FlatKV, rows: Sequence[Target], importer: Importer
) -> tuple[Limits, Questions]:
    """The largest limits within the budget; TargetError if the smallest are beyond it.

    With them what was asked of the tuning records, which decide about a kernel's workspace.
    """
    footprints = [_Footprint.of(row, importer) for row in rows]
    questions = {one.plan.target.name: one.asked for one in footprints}
    return _largest(asked, kv, footprints), questions


def _largest(asked: Asked, kv: FlatKV, footprints: "Sequence[_Footprint]") -> Limits:
    """What was asked for stays. The chunk is the largest of 512, 256, .. that leaves room for a
    context of SHARE chunks, or for the model's whole context; the context then takes the rest.
    """
    *larger, smallest = _chunks(asked)
    least = _need(asked, kv, footprints, smallest)
    if least.total > asked.budget:
        raise _over(asked, least)
    for chunk in larger:
        need = _need(asked, kv, footprints, chunk)
        roomy = need.limits.context >= min(SHARE * chunk, asked.max_context)
        if need.total <= asked.budget and (roomy or asked.context is not None):
            return need.limits
    return least.limits


def _need(asked: Asked, kv: FlatKV, footprints: "Sequence[_Footprint]", chunk: int) -> Need:
    """With the longest context that fits, or where none does, the shortest there can be."""
    weights = footprints[0].weights
    activations = max(footprint.activations(chunk) for footprint in footprints)
    pages = (asked.budget - RUNTIME - weights - activations) // kv.nbytes(1)
    longest = min(asked.max_context, max(pages * kv.page, chunk))
    limits = Limits(context=asked.context or longest, prefill_chunk=chunk)
    return Need(limits, weights, kv.nbytes(limits.context), activations)


def _chunks(asked: Asked) -> Iterator[int]:
    """The chunks to try, longest first."""
    if asked.prefill_chunk is not None:
        yield asked.prefill_chunk
        return
    chunk = min(PREFILL_CHUNK, asked.context or asked.max_context)
    yield chunk
    while chunk // 2 >= LEAST_CHUNK:
        chunk //= 2
        yield chunk


@dataclass(frozen=True, slots=True)
class _Footprint:
    """The model lowered for one row, up to where memory is planned."""

    mod: "IRModule"
    plan: "Plan"
    weights: int
    asked: "tuple[Workload, ...]"  # of the tuning records

    @classmethod
    def of(cls, row: Target, importer: Importer) -> "_Footprint":
        from mlc_compile.passes.bind_weights import read_plan
        from mlc_compile.pipeline import phases
        from mlc_compile.schedule import tuned

        mod, plan = importer(row, Limits(context=1, prefill_chunk=1))  # they decide no kernel
        with emitter_of(row).tvm_target(row):
            for phase in phases(plan):
                if phase.name == "memory":
                    break
                for step in phase.passes:
                    mod = step(mod)
        return cls(mod, plan, read_plan(mod).nbytes, tuned.asked(mod))

    def activations(self, chunk: int) -> int:
        """Bytes that generating takes beside weights and cache, with prefill calls this long."""
        from mlc_compile.passes import plan_memory
        from mlc_compile.pipeline import phases

        plan = dataclasses.replace(self.plan, limits=Limits(context=chunk, prefill_chunk=chunk))
        (memory,) = (phase for phase in phases(plan) if phase.name == "memory")
        mod = self.mod
        with emitter_of(plan.target).tvm_target(plan.target):
            for step in memory.passes:
                mod = step(mod)
        return activation_bytes(plan_memory.read(mod))


def activation_bytes(functions: "Iterable[FunctionMemory]") -> int:
    """What TVM keeps once every function that generates has run at its longest."""
    used = [one for one in functions if one.name in GENERATING]
    kept = sum(one.planned_bytes + one.result_bytes for one in used)
    rounding = sum(ALLOCATOR_PAGE * (one.storages + 1) for one in used)
    workspace = max((one.workspace_bytes for one in used), default=0)
    return kept + rounding + THREADS * workspace


def _over(asked: Asked, need: Need) -> TargetError:
    excess = need.total - asked.budget
    return TargetError(
        f"over budget: {need.told()}, {excess} bytes more than the {_mib(asked.budget)} "
        "of --memory-budget",
        hint="raise it, lower what you asked for (--context, --prefill-chunk), or take fewer "
        "bits (--quant q4f16_1, --kv-dtype float16, on CPUs int8) or a smaller model",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.1f} MiB"
