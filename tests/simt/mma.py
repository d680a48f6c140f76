"""PTX's matrix instructions, whose fragments lie in the registers of known lanes of a warp.

PTX ISA: "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix", with `.x4`.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import tvm

from .errors import Unsupported
from .fragments import DONE, Compile, leaders
from .frame import Frame
from .grid import WARP
from .memory import check_even
from .plan import Array, Eval, Plan
from .pointers import Pointer, compile_pointer

Call = tvm.ir.Call

FORM: Final = ["m16n8k16", "row", "col", "fp16", "fp16", "fp32"]
MATRIX: Final = 8  # rows, and columns, of each of the four that `ldmatrix` loads
ADDRESS_BYTES: Final = 16


def _places(rows: int, held: int, half_columns: int) -> tuple[Array, Array]:
    """Row and column of element i of lane l, both [held, 32].

    Elements go in pairs along a row; of the pairs, first those `rows` apart by 8, then those
    `half_columns` further.
    """
    lane, i = np.arange(WARP), np.arange(held)[:, None]
    pair = i // 2
    down, across = pair % (rows // MATRIX), pair // (rows // MATRIX)
    return lane // 4 + down * MATRIX, lane % 4 * 2 + i % 2 + across * half_columns


A: Final = _places(16, 8, 8)
B: Final = _places(8, 4, 8)
C: Final = _places(16, 4, 8)


class _Registers:
    """Some elements in a row, of each thread, from a pointer on."""

    def __init__(self, node: object, offset: object, plan: Plan, compile_expr: Compile) -> None:
        self.pointer: Pointer = compile_pointer(node, plan, compile_expr)
        self.offset = compile_expr(offset, plan)

    def _index(self, frame: Frame, held: int) -> Array:
        first = self.pointer.offset(frame) + self.offset(frame)
        return first + np.arange(held)[:, None]

    def matrices(self, frame: Frame, places: tuple[Array, Array]) -> Array:
        """float32 [warps, rows, columns]."""
        rows, columns = places
        held = frame.views[self.pointer.key].load(frame.active, self._index(frame, len(rows)))
        by_warp = held.reshape(len(rows), -1, WARP).transpose(1, 0, 2)
        whole = np.empty((len(by_warp), rows.max() + 1, columns.max() + 1), np.float32)
        whole[:, rows, columns] = by_warp
        return whole

    def put(self, frame: Frame, elements: Array) -> None:
        """Set [held, threads]."""
        view = frame.views[self.pointer.key]
        index = self._index(frame, len(elements))
        view.store(frame.active, index, elements.astype(view.array.dtype))


def _multiply(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    form = [str(a.value) for a in list(node.args)[: len(FORM)]]
    if form != FORM:
        raise Unsupported(f"{plan.name}: mma {' '.join(form)}, only {' '.join(FORM)} is known")
    ends = list(node.args)[len(FORM) : len(FORM) + 6]
    a, b, c = (
        _Registers(*pair, plan, compile_expr) for pair in zip(ends[::2], ends[1::2], strict=True)
    )

    def run(frame: Frame) -> Array:
        leaders(frame)
        left, right = a.matrices(frame, A), b.matrices(frame, B)
        total = left @ right.transpose(0, 2, 1) + c.matrices(frame, C)
        rows, columns = C
        c.put(frame, total[:, rows, columns].transpose(1, 0, 2).reshape(len(rows), -1))
        return DONE

    return run


def _load(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    transposed, count, kind, to, at, panel, start = node.args
    if count.value != 4 or str(kind.value) != ".b16":
        raise Unsupported(f"{plan.name}: ldmatrix {count} {kind}, only four of .b16 are known")
    registers = _Registers(to, at, plan, compile_expr)
    pointer, offset = compile_pointer(panel, plan, compile_expr), compile_expr(start, plan)
    flip = bool(transposed.value)

    def run(frame: Frame) -> Array:
        leaders(frame)
        first, view = pointer.offset(frame) + offset(frame), frame.views[pointer.key]
        check_even(frame.active, view, first, ADDRESS_BYTES, "loads a matrix row")
        rows = view.load(frame.active, first + np.arange(MATRIX)[:, None])
        matrices = rows.T.reshape(-1, 4, MATRIX, MATRIX)  # [warps, 4, row, column]
        if flip:
            matrices = matrices.transpose(0, 1, 3, 2)
        pairs = matrices.reshape(-1, 4, WARP, 2)  # a lane's is row lane / 4, columns 2 (lane % 4)
        registers.put(frame, pairs.transpose(1, 3, 0, 2).reshape(8, -1))
        return DONE

    return run


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "ptx_legacy.ldmatrix": _load,
    "ptx_legacy.mma": _multiply,
}
