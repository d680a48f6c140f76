"""Schedule what TVM's legalization gave (adds, slices): vectors inside, threads outside.

Rules are tried in order and the first that answers wins; the last one always does, so no
kernel reaches code generation as it was written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

from mlc_compile.schedule.kernels.vector import lanes_for
from mlc_compile.target import Target

Schedule = Any
ScheduleRule = Callable[[Schedule], Schedule | None]


@module_pass(opt_level=0, name="ScheduleLeftovers")
@dataclass(frozen=True)
class ScheduleLeftovers:
    """Every PrimFunc that no hand has scheduled."""

    target: Target

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        out = IRModule(mod.functions, attrs=mod.attrs)
        for gv, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in func.attrs:
                out[gv] = _scheduled(func)
        return out


def _scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    for rule in RULES:
        answer = rule(s_tir.Schedule(func))
        if answer is not None:
            return answer.mod["main"].with_attr("tirx.is_scheduled", True)
    raise AssertionError("the last rule answers always")


def _elementwise(sch: Schedule) -> Schedule | None:
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


def _as_written(sch: Schedule) -> Schedule:
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


RULES: Final[tuple[ScheduleRule, ...]] = (_elementwise, _as_written)


def _blocks(sch: Schedule) -> list[Any]:
    root = sch.get_sblock("root")
    return list(sch.get_child_blocks(root))


def _is_spatial(sch: Schedule, block: Any) -> bool:
    return all(int(v.iter_type) == tirx.IterVar.DataPar for v in sch.get(block).iter_vars)
