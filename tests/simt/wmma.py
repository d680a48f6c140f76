"""CUDA's warp matrices: fragments of 16 x 16 that the 32 threads of a warp hold together."""

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

SIDE: Final = 16
ADDRESS_BYTES: Final = 32  # CUDA programming guide, warp matrix functions: 256-bit alignment
STRIDE_BYTES: Final = 16  # same place: a multiple of 8 halves or 4 floats
TRANSPOSED: Final = {"row_major": False, "col_major": True}


def _slot(node: Call, plan: Plan, compile_expr: Compile) -> Slot:
    target, m, n, k, index = list(node.args)[:5]
    if [m.value, n.value, k.value] != [SIDE] * 3:
        raise Unsupported(f"{plan.name}: warp matrix {m}x{n}x{k}, only 16x16x16 is known")
    return slot_of(target, index, plan, compile_expr)


def _tile(node: Call, plan: Plan, compile_expr: Compile) -> Tile:
    pointer, stride, order = list(node.args)[5:8]
    return Tile(
        compile_pointer(pointer, plan, compile_expr),
        compile_expr(stride, plan),
        SIDE,
        TRANSPOSED[str(order.value)],
        ADDRESS_BYTES,
        STRIDE_BYTES,
    )


def _fill(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    return filling(_slot(node, plan, compile_expr), compile_expr(node.args[5], plan))


def _load(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    return loading(_slot(node, plan, compile_expr), _tile(node, plan, compile_expr))


def _store(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    return storing(_slot(node, plan, compile_expr), _tile(node, plan, compile_expr), plan)


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "tvm_fill_fragment": _fill,
    "tvm_load_matrix_sync": _load,
    "tvm_store_matrix_sync": _store,
    "tvm_mma_sync": multiplying,
}
