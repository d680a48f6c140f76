"""What the report tells of the passes' work: graphs, traffic and kernels of one library.

`Recorder` watches the pipeline: sizes of the weights when they have names, the operators
before and after each pass, the kernels when the phase "kernels" ends. That takes a tenth of
what the passes take.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tvm import IRModule, relax

from mlc_compile import ops
from mlc_compile.artifact import FlatKV, Limits, Struct
from mlc_compile.passes import events
from mlc_compile.passes.bind_weights import ATTRIBUTE as PLANNED
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.passes.rewrite import bindings_of, relax_functions
from mlc_compile.passes.watch import At
from mlc_compile.records import Record
from mlc_compile.report.calls import Call, calls_of
from mlc_compile.report.graph import told, written
from mlc_compile.report.schema import Curve, FunctionGraph, Kernel, Origin, Stage, Traffic
from mlc_compile.report.work import Sizes, Workload, kernels_of
from mlc_compile.schedule import leftovers, lower_operators, tuned

RECORDED: Final = ("import", "graph", "activations", "kernels")  # phases with calls to read


class Compilation(Struct, frozen=True):
    """Of one library."""

    graphs: tuple[FunctionGraph, ...]
    traffic: tuple[Traffic, ...]
    kernels: tuple[Kernel, ...]
    shapes: dict[str, tuple[int, ...]]  # of each weight of the checkpoint
    tuning: tuple[Curve, ...] = ()  # none where nothing was tuned


@dataclass(slots=True)
class Recorder:
    """A `passes.watch.Watcher` that remembers what the report tells."""

    kv: FlatKV
    limits: Limits
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seen: dict[str, relax.Function] = field(default_factory=dict)
    first: dict[str, tuple[Call, ...]] = field(default_factory=dict)
    last: dict[str, tuple[Call, ...]] = field(default_factory=dict)
    stages: dict[str, list[Stage]] = field(default_factory=dict)
    origins: dict[str, tuple[Origin, str]] = field(default_factory=dict)
    tuned: dict[str, Record] = field(default_factory=dict)  # by kernel

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """A token at the end of a full cache; the longest prompt that one call takes."""
        context, chunk = self.limits.context, self.limits.prefill_chunk
        return (Workload("decode", 1, context - 1), Workload("prefill", chunk, 0))

    def start(self, mod: IRModule) -> None:
        """Nothing to see: operators have no weights yet."""

    def after(self, at: At, mod: IRModule) -> None:
        """Read the calls after each pass until memory is planned."""
        if at.phase not in RECORDED:
            return
        self.shapes = self.shapes or _shapes(mod)
        plan = read_plan(mod) if PLANNED in (mod.attrs or {}) else None
        functions = {str(gv.name_hint): func for gv, func in relax_functions(mod)}
        for workload in self.workloads:
            func, seen = functions[workload.function], self.seen.get(workload.function)
            if seen is None or (_is_due(at, workload) and not func.same_as(seen)):
                self._note(at, workload.function, calls_of(func, workload.tokens, plan))
                self.seen[workload.function] = func
        if at.phase == "kernels":
            self.origins = _origins(events.read(mod))
            self.tuned = tuned.tuned(mod)

    def _note(self, at: At, function: str, calls: tuple[Call, ...]) -> None:
        self.first.setdefault(function, calls)
        self.last[function] = calls
        stage = Stage(phase=at.phase, step=at.step, calls=len(calls), written_bytes=written(calls))
        known = self.stages.setdefault(function, [])
        if not known or (known[-1].calls, known[-1].written_bytes) != (
            stage.calls,
            stage.written_bytes,
        ):
            known.append(stage)

    def compilation(self) -> Compilation:
        """All of it, once the pipeline has run."""
        sizes = Sizes(self.kv, self.shapes)
        kernels = {
            w.function: kernels_of(self.last[w.function], w, sizes, self.origins)
            for w in self.workloads
        }
        return Compilation(
            graphs=tuple(self._graph(w) for w in self.workloads),
            traffic=tuple(self._traffic(w, kernels[w.function]) for w in self.workloads),
            kernels=tuple(kernel for same in kernels.values() for kernel in same),
            shapes=self.shapes,
            tuning=tuple(_curve(name, r) for name, r in self.tuned.items() if r.history),
        )

    def _graph(self, workload: Workload) -> FunctionGraph:
        name = workload.function
        return FunctionGraph(
            name=name,
            tokens=workload.tokens,
            before=told(self.first[name]),
            after=told(self.last[name]),
            stages=tuple(self.stages[name]),
        )

    def _traffic(self, workload: Workload, kernels: tuple[Kernel, ...]) -> Traffic:
        first, last = self.first[workload.function], self.last[workload.function]
        return Traffic(
            function=workload.function,
            tokens=workload.tokens,
            before=workload.before,
            launches=len(last),
            weight_bytes=sum(k.weight_bytes for k in kernels),
            cache_bytes=sum(k.cache_bytes for k in kernels),
            read_bytes=sum(k.read_bytes for k in kernels),
            written_bytes=written(last),
            unfused_bytes=written(first),
            unfused_calls=len(first),
        )


def _curve(kernel: str, record: Record) -> Curve:
    """As the record tells it, to the trial at which it was made."""
    trials, ratios = zip(*record.history, strict=True)
    default = 1e-6 * record.default_microseconds
    seconds = tuple(ratio * default for ratio in (*ratios, ratios[-1]))
    return Curve(kernel=kernel, trials=(*trials, record.trials), seconds=seconds)


def _is_due(at: At, workload: Workload) -> bool:
    """A token's calls are read after each pass; a prompt's, which are many more, by phase."""
    return at.ends_phase or workload.tokens == 1


def _shapes(mod: IRModule) -> dict[str, tuple[int, ...]]:
    """Of the weights, each a source of its own until projections are merged."""
    return {
        weight.sources[0]: weight.shape
        for _, func in relax_functions(mod)
        for value in bindings_of(func).values()
        if ops.is_call(value, "mlc.weight")
        for weight in (ops.Weight.of(value),)
    }


def _origins(noted: Iterable[events.Event]) -> dict[str, tuple[Origin, str]]:
    """Kernel -> who made it, by what the passes of the phase noted."""
    found: dict[str, tuple[Origin, str]] = {}
    for event in noted:
        if event.outcome != "done":
            continue
        if event.source == lower_operators.NAME:
            found[event.subject] = "rule", ""
        elif event.source == tuned.RECORDS:
            found[event.subject] = "record", event.reason
        elif event.source == leftovers.NAME:
            fallback = event.reason == leftovers.RULES[-1].does
            found[event.subject] = "default" if fallback else "rule", event.reason
    return found
