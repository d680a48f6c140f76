"""Metal's simdgroup matrices: fragments of 8 x 8 that the 32 threads of a simdgroup hold together.

Metal Shading Language specification, "SIMD-group matrices".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import tvm

from .errors import Unsupported
from .fragments import DONE, Compile, Slot, leaders, per_warp, slot_of
from .frame import Frame
from .plan import Array, Eval, Plan
from .pointers import Pointer, compile_pointer

Call = tvm.ir.Call

SIDE: Final = 8
ELEMENTS: Final = SIDE * SIDE


@dataclass(frozen=True, slots=True)
class Tile:
    """Where the 64 elements of a fragment are in memory."""

    pointer: Pointer
    stride: Eval
    transposed: bool

    def places(self, frame: Frame) -> Array:
        """Indices [64, simdgroups] or [64, 1]."""
        line, column = np.divmod(np.arange(ELEMENTS)[:, None], SIDE)
        if self.transposed:
            line, column = column, line
        offset = per_warp(frame, self.pointer.offset(frame))
        return offset + line * per_warp(frame, self.stride(frame)) + column


def _operands(node: Call, plan: Plan, compile_expr: Compile) -> tuple[Slot, Tile]:
    fragments, index, pointer, stride, columns, rows, transposed = node.args
    if [columns.value, rows.value] != [SIDE, SIDE]:
        raise Unsupported(f"{plan.name}: simdgroup matrix {columns}x{rows}, only 8x8 is known")
    place = compile_pointer(pointer, plan, compile_expr)
    tile = Tile(place, compile_expr(stride, plan), bool(transposed.value))
    return slot_of(fragments, index, plan, compile_expr), tile


def _fill(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    target, index, value = list(node.args)[:3]
    slot, fill = slot_of(target, index, plan, compile_expr), compile_expr(value, plan)

    def run(frame: Frame) -> Array:
        fragments, at = slot.find(frame)
        fragments.put(leaders(frame), at, per_warp(frame, fill(frame)))
        return DONE

    return run


def _load(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    slot, tile = _operands(node, plan, compile_expr)

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        fragments.put(first, at, frame.views[tile.pointer.key].load(first, tile.places(frame)))
        return DONE

    return run


def _store(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    slot, tile = _operands(node, plan, compile_expr)
    plan.usage.written.add(tile.pointer.root)

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        value = fragments.get(first, at)
        frame.views[tile.pointer.key].store(first, tile.places(frame), value)
        return DONE

    return run


def _multiply(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    args = list(node.args)
    d, a, b, c = (slot_of(args[i], args[i + 1], plan, compile_expr) for i in range(0, 8, 2))

    def run(frame: Frame) -> Array:
        first = leaders(frame)

        def matrices(slot: Slot) -> Array:
            fragments, at = slot.find(frame)
            return fragments.get(first, at).T.reshape(-1, SIDE, SIDE).astype(np.float32)

        total = matrices(a) @ matrices(b) + matrices(c)
        fragments, at = d.find(frame)
        fragments.put(first, at, total.reshape(-1, ELEMENTS).T.astype(fragments.data.dtype))
        return DONE

    return run


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "make_filled_simdgroup_matrix": _fill,
    "simdgroup_load": _load,
    "simdgroup_store": _store,
    "simdgroup_multiply_accumulate": _multiply,
}
