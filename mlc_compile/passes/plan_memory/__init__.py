"""One arena for all that a function's kernels write and only its kernels read.

    a = alloc_tensor(..)                        arena = alloc_storage(total)
    f(x, a)                                     a = alloc_tensor(arena at 0, ..)
    b = alloc_tensor(..)                  ->    f(x, a)
    g(a, b)                                     b = alloc_tensor(arena at 4096, ..)
                                                g(a, b)

Tensors that are alive at the same time lie apart; sizes are those at the upper bounds of the
symbolic dimensions, so the places are constants. Runs after CallTIRRewrite and BoundTokens.
Where kernels take no offsets (Target.arena), and for what a function of the runtime takes,
tensors share storages that they all begin at the start of. Results are allocated apart.

The plan is the module attribute `mlc.memory`, beside what TVM's planner would have needed:
where that is less, its sharing is taken over.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from tvm import IRModule, relax
from tvm.ir import StringImm
from tvm.ir.transform import PassContext, module_pass

from mlc_compile.passes import events
from mlc_compile.passes.plan_memory.inplace import may_alias
from mlc_compile.passes.plan_memory.layout import Layout, best_layout, storage_bytes
from mlc_compile.passes.plan_memory.liveness import Liveness
from mlc_compile.passes.plan_memory.offsets import take_offsets
from mlc_compile.passes.plan_memory.packing import live_bytes, lower_bound
from mlc_compile.passes.plan_memory.rewriting import put_in_place
from mlc_compile.passes.plan_memory.workspace import workspace_bytes
from mlc_compile.passes.rewrite import relax_functions

NAME: Final = "PlanMemory"
ATTRIBUTE: Final = "mlc.memory"


class PlacedTensor(msgspec.Struct, frozen=True):
    """An intermediate: where it lies, and in which steps it is alive (both ends included)."""

    name: str  # the kernel that writes it first; `kernel.5` if that writes several: the argument
    nbytes: int
    offset: int  # in the function's storages, laid end to end
    first: int
    last: int


class KernelStep(msgspec.Struct, frozen=True):
    """One call of a kernel: bytes alive during it, and what each thread takes beside."""

    kernel: str
    live_bytes: int
    workspace_bytes: int


class FunctionMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one function holds while it runs, in bytes, for the longest call it takes."""

    name: str
    naive_bytes: int  # each intermediate in memory of its own
    static_plan_bytes: int  # by relax.transform.StaticPlanBlockMemory
    planned_bytes: int  # what is allocated
    storages: int  # in how many pieces
    lower_bound_bytes: int  # alive at once in the fullest step: nothing less can do
    result_bytes: int  # allocated anew for the caller
    workspace_bytes: int  # the most that one thread takes in a kernel
    steps: tuple[KernelStep, ...]
    tensors: tuple[PlacedTensor, ...]


@module_pass(opt_level=0, name=NAME)
@dataclass(frozen=True)
class PlanMemory:
    """`arena`: whether kernels take tensors that begin inside a storage.

    `in_place`: whether a kernel's result may take the place of an argument that dies. Not on
    WebGPU, which binds no buffer both for reading and for writing.
    """

    arena: bool
    in_place: bool = True

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        if read(mod):
            return mod
        static = relax.transform.StaticPlanBlockMemory()(mod)
        out = IRModule(mod.functions, attrs=mod.attrs)
        told: list[FunctionMemory] = []
        noted: list[events.Event] = []
        moved: dict[relax.GlobalVar, set[int]] = defaultdict(set)
        for gv, func in relax_functions(mod):
            alive, layout = best_layout(
                mod, func, static[gv], arena=self.arena, in_place=self.in_place
            )
            if not alive.steps:
                continue
            out[gv] = put_in_place(func, layout)
            for kernel in alive.overwriting:
                out[kernel] = may_alias(mod[kernel])
            for kernel, position in _moved(alive, layout):
                moved[kernel].add(position)
            told.append(_told(mod, str(gv.name_hint), alive, layout, storage_bytes(static[gv])))
            noted += _events(told[-1], alive)
        if not told:
            return mod
        for kernel, positions in moved.items():
            out[kernel] = take_offsets(out[kernel], positions)
        out = out.with_attr(ATTRIBUTE, StringImm(msgspec.json.encode(told).decode()))
        return events.record(out, noted)


def read(mod: IRModule) -> tuple[FunctionMemory, ...]:
    """The plans of a module's functions, by name; none before this pass."""
    if mod.attrs is None or ATTRIBUTE not in mod.attrs:
        return ()
    return msgspec.json.decode(str(mod.attrs[ATTRIBUTE].value), type=tuple[FunctionMemory, ...])


def _moved(alive: Liveness, layout: Layout) -> Iterator[tuple[relax.GlobalVar, int]]:
    """The kernels that are given a tensor inside a storage, and as which parameter."""
    for step in alive.steps:
        for position, held in enumerate(step.args):
            if any(layout.places[v].offset for v in held if v in layout.places):
                yield step.call.op, position


def _told(
    mod: IRModule, name: str, alive: Liveness, layout: Layout, static_plan_bytes: int
) -> FunctionMemory:
    lifetimes = [one.lifetime for one in alive.intermediates]
    called = {step.call.op for step in alive.steps}
    taken = {
        kernel: workspace_bytes(mod[kernel])
        for kernel in called
        if isinstance(kernel, relax.GlobalVar)
    }
    # A function of the runtime is not looked into.
    spaces = [taken.get(step.call.op, 0) for step in alive.steps]
    live = live_bytes(lifetimes, len(alive.steps))
    return FunctionMemory(
        name=name,
        naive_bytes=alive.naive_bytes,
        static_plan_bytes=static_plan_bytes,
        planned_bytes=sum(layout.storages),
        storages=len(layout.storages),
        lower_bound_bytes=lower_bound(lifetimes),
        result_bytes=sum(alive.results.values()),
        workspace_bytes=max(spaces),
        steps=tuple(map(KernelStep, (step.name for step in alive.steps), live, spaces)),
        tensors=tuple(
            PlacedTensor(
                name=one.name,
                nbytes=one.lifetime.nbytes,
                offset=layout.position(one.vars[0]),
                first=one.lifetime.first,
                last=one.lifetime.last,
            )
            for one in alive.intermediates
        ),
    )


def _events(one: FunctionMemory, alive: Liveness) -> list[events.Event]:
    reason = f"{one.planned_bytes} bytes, of which {one.lower_bound_bytes} are alive at once"
    noted = [events.Event(NAME, one.name, "done", reason)]
    noted += [
        events.Event(NAME, str(kernel.name_hint), "done", "writes over an argument that dies")
        for kernel in alive.overwriting
    ]
    if alive.unbounded:
        why = f"{alive.unbounded} tensors have no largest size: they are allocated by the call"
        noted.append(events.Event(NAME, one.name, "refused", why))
    return noted
