"""Schedule what TVM's legalization gave (adds, slices): for a CPU's vectors, or a GPU's threads.

Rules are tried in order and the first that answers wins; the last one always does, so no
kernel reaches code generation as it was written. On a GPU each block of computation becomes a
launch of its own, unless it could be computed where it is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace
from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from mlc_compile.passes import events
from mlc_compile.records import NOTHING, Chosen, Record, Workload
from mlc_compile.schedule import traces, tuned
from mlc_compile.schedule.kernels.vector import lanes_for
from mlc_compile.target import Device

NAME: Final = "ScheduleLeftovers"
THREADS: Final = 256  # of a block that computes elements
ROW_THREADS: Final = 32  # of a block that reduces a row: TVM sums more of them in two stages
BLOCKS: Final = 256  # of a launch whose size is known at run time only
_SPATIAL, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """`apply` gives the schedule, or None where it has no answer; `does` says what it is."""

    does: str
    apply: Callable[[s_tir.Schedule], s_tir.Schedule | None]


@module_pass(opt_level=0, name=NAME)
@dataclass(frozen=True)
class ScheduleLeftovers:
    """Every PrimFunc that no hand has scheduled; an event says by which rule, or which record.

    `device` is the GPU that computes; None: the host's CPU does.
    """

    device: Device | None = None
    records: Chosen = NOTHING

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        rules = _rules(self.device)
        out = IRModule(mod.functions, attrs=mod.attrs)
        noted, used, asked = list[events.Event](), dict[str, Record](), list[Workload]()
        for gv, func in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in func.attrs:
                name = str(gv.name_hint)
                default, does = _scheduled(func, rules)
                asked.append(traces.workload_of(func))
                found = _recorded(name, func, default, self.records.about(asked[-1:]))
                out[gv] = found.func or default
                noted.append(events.Event(NAME, name, "done", does))
                noted += filter(None, [found.told])
                used |= {name: found.record} if found.record else {}
        return tuned.with_asked(tuned.with_tuned(events.record(out, noted), used), asked)


def by_rules(func: tirx.PrimFunc, device: Device | None) -> tirx.PrimFunc:
    """`func` as it is scheduled where there is no record."""
    return _scheduled(func, _rules(device))[0]


def _rules(device: Device | None) -> tuple[ScheduleRule, ...]:
    return RULES if device is None else gpu_rules(device)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What became of a record about a kernel, if there is one."""

    func: tirx.PrimFunc | None = None
    told: events.Event | None = None
    record: Record | None = None


def _recorded(name: str, func: tirx.PrimFunc, default: tirx.PrimFunc, records: Chosen) -> _Recorded:
    """What `records`, which are of its workload, say of a function."""
    if not records.records:
        return _Recorded()
    workload, version = traces.workload_of(func), traces.space_version(default)
    record = records.find(workload, version)
    if record is None:
        outdated = records.outdated(workload, version)
        return _Recorded(told=replace(tuned.OUTDATED, subject=name) if outdated else None)
    choice = record.choice
    answer = traces.replayed(func, choice) if isinstance(choice, list) else None
    if answer is None:
        return _Recorded(
            told=events.Event(tuned.RECORDS, name, "refused", "its trace does not replay")
        )
    return _Recorded(answer, tuned.used(name, "a trace of MetaSchedule's", record), record)


def _scheduled(func: tirx.PrimFunc, rules: tuple[ScheduleRule, ...]) -> tuple[tirx.PrimFunc, str]:
    for rule in rules:
        answer = rule.apply(s_tir.Schedule(func))
        if answer is not None:
            return answer.mod["main"].with_attr("tirx.is_scheduled", True), rule.does
    raise AssertionError("the last rule answers always")


def _elementwise(sch: s_tir.Schedule) -> s_tir.Schedule | None:
    """One block without reductions: vectors along the last axis, threads over symbolic ones."""
    blocks = _blocks(sch)
    if len(blocks) != 1 or not _is_spatial(sch, blocks[0]):
        return None
    loops = sch.get_loops(blocks[0])
    if not loops:
        return None
    *outer, inner = loops
    extent = sch.get(inner).extent
    if isinstance(extent, tirx.IntImm) and lanes_for(int(extent)) > 1:
        rest, lanes = sch.split(inner, [None, lanes_for(int(extent))])
        sch.vectorize(lanes)
        outer = outer or [rest]
    if any(not isinstance(sch.get(loop).extent, tirx.IntImm) for loop in outer):
        sch.parallel(sch.fuse(*outer))
    return sch


def _as_written(sch: s_tir.Schedule) -> s_tir.Schedule:
    """The default: threads over the outermost spatial loop of each block with a symbolic extent."""
    for block in _blocks(sch):
        loops = sch.get_loops(block)
        if (
            loops
            and _is_spatial(sch, block)
            and not isinstance(sch.get(loops[0]).extent, tirx.IntImm)
        ):
            sch.parallel(loops[0])
    return sch


RULES: Final = (
    ScheduleRule("vectors inside, threads over tokens", _elementwise),
    ScheduleRule("as written: it is not one block without reductions", _as_written),
)


def gpu_rules(device: Device) -> tuple[ScheduleRule, ...]:
    """The rules for a GPU, sized by what it lets a kernel do."""
    return (
        ScheduleRule("a thread an element", partial(_an_element_a_thread, device=device)),
        ScheduleRule("a block of threads a row", partial(_a_block_a_row, device=device)),
        ScheduleRule("a thread an element, which it sums up alone", partial(_alone, device=device)),
    )


def _an_element_a_thread(sch: s_tir.Schedule, device: Device) -> s_tir.Schedule | None:
    """Blocks without reductions, those computed in place that can be."""
    _inline(sch)
    blocks = _blocks(sch)
    if not all(_is_spatial(sch, block) for block in blocks):
        return None
    for block in blocks:
        _bind(sch, block, sch.get_loops(block), device)
    return sch


def _a_block_a_row(sch: s_tir.Schedule, device: Device) -> s_tir.Schedule | None:
    """Reductions over the innermost loops, shared by a block's threads."""
    _inline(sch)
    for block in _blocks(sch):
        if _is_spatial(sch, block):
            _bind(sch, block, sch.get_loops(block), device)
        elif not _bind_row(sch, block, device):
            return None
    return sch


def _alone(sch: s_tir.Schedule, device: Device) -> s_tir.Schedule:
    """A thread runs the reductions of its element one after another."""
    for block in _blocks(sch):
        loops = sch.get_loops(block)
        kinds = _kinds(sch, block)
        if len(loops) == len(kinds):
            spatial = [x for x, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
            reduced = [x for x in loops if x not in spatial]
            sch.reorder(*spatial, *reduced)
        else:  # a nest that is not the block's own: all of it in one thread
            spatial = []
        _bind(sch, block, spatial, device)
    return sch


def _bind_row(sch: s_tir.Schedule, block: SBlockRV, device: Device) -> bool:
    """Blocks over the outer, spatial loops and threads over the inner, reduced ones, if so."""
    loops, kinds = sch.get_loops(block), _kinds(sch, block)
    split = kinds.count(_SPATIAL)
    if len(loops) != len(kinds) or kinds != sorted(kinds) or set(kinds[split:]) != {_REDUCED}:
        return False
    row = sch.fuse(*loops[split:])
    threads = min(ROW_THREADS, device.threads)
    _, inner = sch.split(row, [None, threads], preserve_unit_iters=True)
    sch.bind(inner, "threadIdx.x")
    outer = sch.fuse(*loops[:split]) if split else sch.add_unit_loop(sch.get_loops(block)[0])
    _bind_blocks(sch, outer, device)
    return True


def _bind(sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV], device: Device) -> None:
    """Threads over `loops`, the outermost of the block's; one thread if there is none."""
    if loops:
        all_loops = sch.fuse(*loops)
    elif sch.get_loops(block):
        all_loops = sch.add_unit_loop(sch.get_loops(block)[0])
    else:
        all_loops = sch.add_unit_loop(block)
    outer, inner = sch.split(all_loops, [None, min(THREADS, device.threads)])
    sch.bind(inner, "threadIdx.x")
    _bind_blocks(sch, outer, device)


def _bind_blocks(sch: s_tir.Schedule, loop: LoopRV, device: Device) -> None:
    """Blocks over `loop`; a fixed number of them takes turns where it may be too long."""
    extent = sch.get(loop).extent
    if isinstance(extent, tirx.IntImm) and int(extent) <= device.grid:
        sch.bind(loop, "blockIdx.x")
        return
    turns, blocks = sch.split(loop, [None, BLOCKS])
    sch.reorder(blocks, turns)
    sch.bind(blocks, "blockIdx.x")


def _inline(sch: s_tir.Schedule) -> None:
    """Compute in place what other blocks read, where it is elementwise."""
    for block in _blocks(sch):
        if _is_spatial(sch, block) and sch.get_consumers(block):
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue


def _kinds(sch: s_tir.Schedule, block: SBlockRV) -> list[int]:
    return [int(v.iter_type) for v in sch.get(block).iter_vars]


def _blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    root = sch.get_sblock("root")
    return list(sch.get_child_blocks(root))


def _is_spatial(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return all(kind == _SPATIAL for kind in _kinds(sch, block))
