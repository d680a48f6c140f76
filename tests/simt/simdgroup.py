"""Metal's simdgroup matrices: fragments of 8 x 8 that the 32 threads of a simdgroup hold together.

Metal Shading Language specification, "SIMD-group matrices".
"""

from collections.abc import Callable, Mapping
from typing import Final

import tvm

from .errors import Unsupported
from .fragments import (
    Compile,
    Slot,
    Tile,
    filling,
    loading,
    multiplying,
    slot_of,
    storing,
)
from .plan import Eval, Plan
from .pointers import compile_pointer

Call = tvm.ir.Call

SIDE: Final = 8


def _fill(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    target, index, value = list(node.args)[:3]
    return filling(slot_of(target, index, plan, compile_expr), compile_expr(value, plan))


def _operands(node: Call, plan: Plan, compile_expr: Compile) -> tuple[Slot, Tile]:
    fragments, index, pointer, stride, columns, rows, transposed = node.args
    if [columns.value, rows.value] != [SIDE, SIDE]:
        raise Unsupported(f"{plan.name}: simdgroup matrix {columns}x{rows}, only 8x8 is known")
    place = compile_pointer(pointer, plan, compile_expr)
    tile = Tile(place, compile_expr(stride, plan), SIDE, bool(transposed.value))
    return slot_of(fragments, index, plan, compile_expr), tile


def _load(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    return loading(*_operands(node, plan, compile_expr))


def _store(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    return storing(*_operands(node, plan, compile_expr), plan)


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "make_filled_simdgroup_matrix": _fill,
    "simdgroup_load": _load,
    "simdgroup_store": _store,
    "simdgroup_multiply_accumulate": multiplying,
}
