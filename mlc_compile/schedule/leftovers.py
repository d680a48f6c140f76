"""Schedule what TVM's legalization gave (adds, slices): vectors inside, threads outside.

Rules are tried in order and the first that answers wins; the last one always does, so no
kernel reaches code generation as it was written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir.schedule import SBlockRV

from mlc_compile.passes import events
from mlc_compile.schedule.kernels.vector import lanes_for

NAME: Final = "ScheduleLeftovers"


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """`apply` gives the schedule, or None where it has no answer; `does` says what it is."""

    does: str
    apply: Callable[[s_tir.Schedule], s_tir.Schedule | None]


@module_pass(opt_level=0, name=NAME)
class ScheduleLeftovers:
    """Every PrimFunc that no hand has scheduled; an event says by which rule."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        out = IRModule(mod.functions, attrs=mod.attrs)
        noted = []
        for gv, func in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in func.attrs:
                out[gv], does = _scheduled(func)
                noted.append(events.Event(NAME, str(gv.name_hint), "done", does))
        return events.record(out, noted)


def _scheduled(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, str]:
    for rule in RULES:
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


def _blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    root = sch.get_sblock("root")
    return list(sch.get_child_blocks(root))


def _is_spatial(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return all(int(v.iter_type) == tirx.IterVar.DataPar for v in sch.get(block).iter_vars)
