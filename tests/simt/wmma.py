"""CUDA's warp matrices: fragments of 16 x 16 that the 32 threads of a warp hold together.

Which thread holds which element is not specified, so a fragment is kept per warp, and its
accesses of memory count as those of the warp's first thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import tvm

from .dtypes import constant
from .errors import DivergentBarrier, Misaligned, OutOfBounds, UninitializedRead, Unsupported
from .frame import Active, Frame
from .grid import WARP, Threads
from .memory import complain
from .plan import Array, Buffer, Eval, Plan
from .pointers import compile_pointer

Compile = Callable[[object, Plan], Eval]
Call = tvm.ir.Call

SIDE: Final = 16
ELEMENTS: Final = SIDE * SIDE
# Elements of a fragment, by where it is; Metal's are in `simdgroup`.
SCOPES: Final = dict.fromkeys(("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"), ELEMENTS) | {
    "metal.simdgroup": 64
}
ADDRESS_BYTES: Final = 32  # CUDA programming guide, warp matrix functions: 256-bit alignment
STRIDE_BYTES: Final = 16  # same place: a multiple of 8 halves or 4 floats
ROW_MAJOR: Final = {"row_major": True, "col_major": False}


@dataclass(slots=True)
class Fragments:
    """A fragment array of every warp: `data` [fragments, elements, warps], row-major."""

    name: str
    data: Array
    filled: Array  # bool [fragments, warps]

    def get(self, active: Active, index: int) -> Array:
        """Fragment `index` of each warp, [elements, warps]."""
        empty = active.select(~self.filled[index])
        if empty.any():
            what = f"reads fragment {self.name}[{index}], which was not filled"
            complain(UninitializedRead, active, int(empty.argmax()), what)
        return self.data[index]

    def put(self, active: Active, index: int, value: Array) -> None:
        """Set fragment `index` of the active warps."""
        where = np.ones(self.filled.shape[1], bool) if active.mask is None else active.mask
        np.copyto(self.data[index], value, where=where)
        self.filled[index] |= where


def make_fragments(buffer: Buffer, warps: int) -> Fragments:
    """Empty fragments for a buffer."""
    elements = SCOPES[buffer.scope]
    count = (buffer.size or 0) // elements
    data = np.zeros((count, elements, warps), buffer.type.dtype)
    return Fragments(buffer.name, data, np.zeros((count, warps), bool))


def warps_of(threads: Threads) -> int:
    """How many warps these threads are."""
    return len(threads) // WARP


def leaders(frame: Frame) -> Active:
    """The first thread of each warp, for all; a warp takes part as a whole or not at all."""
    active = frame.active
    if active.threads.grid.threads % WARP:
        raise Unsupported(f"{active.threads.grid.kernel}: warp matrices need whole warps")
    if active.mask is not None:
        present = active.mask.reshape(-1, WARP)
        partly = present.any(axis=1) & ~present.all(axis=1)
        if partly.any():
            lane = int(np.repeat(partly, WARP)[active.lanes].argmax())
            what = "uses a warp matrix without all the threads of its warp"
            complain(DivergentBarrier, active, lane, what)
    return active.pick(np.arange(0, len(active.threads), WARP))


def per_warp(frame: Frame, value: Array) -> Array:
    """A value [warps] or [1] on which the active threads of each warp must agree."""
    if value.shape[-1] == 1:
        return value
    active = frame.active
    differs = value != np.repeat(value[::WARP], WARP)
    bad = active.select(differs)
    if bad.any():
        what = "uses a warp matrix with operands that differ within its warp"
        complain(DivergentBarrier, active, int(bad.argmax()), what)
    return value[::WARP]


@dataclass(frozen=True, slots=True)
class Slot:
    """One fragment of a fragment array; `index` is the same for all threads."""

    root: int
    index: Eval

    def find(self, frame: Frame) -> tuple[Fragments, int]:
        """The array and the place in it."""
        fragments, index = frame.fragments[self.root], self.index(frame)
        at, count = int(index[0]), len(fragments.data)
        if index.shape != (1,):
            raise Unsupported(f"fragment {fragments.name} is selected by a thread's value")
        if not 0 <= at < count:
            what = f"out of bounds: fragment {fragments.name}[{at}] of {count}"
            complain(OutOfBounds, frame.active, 0, what)
        return fragments, at


def slot_of(node: object, index: object, plan: Plan, compile_expr: Compile) -> Slot:
    """The fragment of that number in a fragment array."""
    return Slot(plan.buffer(node).root, compile_expr(index, plan))


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


DONE: Final = constant(0, np.dtype("int32"))

CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "tvm_fill_fragment": _fill,
    "tvm_load_matrix_sync": _load,
    "tvm_store_matrix_sync": _store,
    "tvm_mma_sync": _multiply,
}
