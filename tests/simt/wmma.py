"""CUDA's warp matrices: fragments of 16 x 16 that the 32 threads of a warp hold together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import tvm

from .errors import Misaligned, Unsupported
from .fragments import DONE, Compile, Slot, leaders, per_warp, slot_of
from .frame import Frame
from .memory import complain
from .plan import Array, Eval, Plan
from .pointers import compile_pointer

Call = tvm.ir.Call

SIDE: Final = 16
ELEMENTS: Final = SIDE * SIDE
ADDRESS_BYTES: Final = 32  # CUDA programming guide, warp matrix functions: 256-bit alignment
STRIDE_BYTES: Final = 16  # same place: a multiple of 8 halves or 4 floats
ROW_MAJOR: Final = {"row_major": True, "col_major": False}


def _check_shape(m: object, n: object, k: object, plan: Plan) -> None:
    if [m.value, n.value, k.value] != [SIDE] * 3:
        raise Unsupported(f"{plan.name}: warp matrix {m}x{n}x{k}, only 16x16x16 is known")


def _fill(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    target, m, n, k, index, value = node.args
    _check_shape(m, n, k, plan)
    slot, fill = slot_of(target, index, plan, compile_expr), compile_expr(value, plan)

    def run(frame: Frame) -> Array:
        fragments, at = slot.find(frame)
        fragments.put(leaders(frame), at, per_warp(frame, fill(frame)))
        return DONE

    return run


@dataclass(frozen=True, slots=True)
class Tile:
    """Where the 256 elements of a fragment are in memory."""

    key: int
    root: int
    offset: Eval
    stride: Eval
    line: Array
    column: Array

    def places(self, frame: Frame) -> Array:
        """Indices [256, warps] or [256, 1]."""
        offset, stride = self.offset(frame), self.stride(frame)
        self._check_alignment(frame, offset, ADDRESS_BYTES, "address")
        self._check_alignment(frame, stride, STRIDE_BYTES, "stride")
        return per_warp(frame, offset) + self.line * per_warp(frame, stride) + self.column

    def _check_alignment(self, frame: Frame, value: Array, unit: int, what: str) -> None:
        view = frame.views[self.key]
        odd = frame.active.select(value * view.array.itemsize % unit != 0)
        if odd.any():
            lane = int(odd.argmax())
            at = frame.active.select(value)[lane]
            told = f"uses a warp matrix in {view.name} whose {what}, {at}, is not {unit} bytes even"
            complain(Misaligned, frame.active, lane, told)


def _tile(node: Call, plan: Plan, compile_expr: Compile) -> Tile:
    pointer = compile_pointer(node.args[5], plan, compile_expr)
    stride = compile_expr(node.args[6], plan)
    line, column = np.divmod(np.arange(ELEMENTS)[:, None], SIDE)
    if not ROW_MAJOR[str(node.args[7].value)]:
        line, column = column, line
    return Tile(pointer.key, pointer.root, pointer.offset, stride, line, column)


def _load(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    target, m, n, k, index = list(node.args)[:5]
    _check_shape(m, n, k, plan)
    slot, tile = slot_of(target, index, plan, compile_expr), _tile(node, plan, compile_expr)

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        fragments.put(first, at, frame.views[tile.key].load(first, tile.places(frame)))
        return DONE

    return run


def _store(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    source, m, n, k, index = list(node.args)[:5]
    _check_shape(m, n, k, plan)
    slot, tile = slot_of(source, index, plan, compile_expr), _tile(node, plan, compile_expr)
    plan.usage.written.add(tile.root)

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        value = fragments.get(first, at)
        frame.views[tile.key].store(first, tile.places(frame), value)
        return DONE

    return run


def _multiply(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    args = list(node.args)
    d, a, b, c = (slot_of(args[i], args[i + 1], plan, compile_expr) for i in range(0, 8, 2))

    def run(frame: Frame) -> Array:
        first = leaders(frame)

        def matrices(slot: Slot) -> Array:
            fragments, at = slot.find(frame)
            flat = fragments.get(first, at)
            return flat.T.reshape(-1, SIDE, SIDE).astype(np.float32)

        total = matrices(a) @ matrices(b) + matrices(c)
        fragments, at = d.find(frame)
        flat = total.reshape(-1, ELEMENTS).T
        fragments.put(first, at, flat.astype(fragments.data.dtype))
        return DONE

    return run


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "tvm_fill_fragment": _fill,
    "tvm_load_matrix_sync": _load,
    "tvm_store_matrix_sync": _store,
    "tvm_mma_sync": _multiply,
}
