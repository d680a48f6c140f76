"""Fragments of small matrices that the threads of a warp, or simdgroup, hold together.

Where it is not specified which thread holds which element, a fragment is kept per warp, and its
accesses of memory count as those of the warp's first thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np
import tvm

from .dtypes import constant
from .errors import DivergentBarrier, Misaligned, OutOfBounds, UninitializedRead, Unsupported
from .frame import Active, Frame
from .grid import WARP, Threads
from .memory import complain
from .plan import Array, Buffer, Eval, Plan
from .pointers import Pointer

Compile = Callable[[object, Plan], Eval]

# Elements of a fragment, by where it is.
SCOPES: Final = dict.fromkeys(("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"), 256) | {
    "metal.simdgroup": 64
}
DONE: Final = constant(0, np.dtype("int32"))


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


@dataclass(frozen=True, slots=True)
class Tile:
    """Where the side x side elements of a fragment are in memory.

    Its address and stride must be multiples of so many bytes.
    """

    pointer: Pointer
    stride: Eval
    side: int
    transposed: bool
    address_bytes: int = 1
    stride_bytes: int = 1

    def places(self, frame: Frame) -> Array:
        """Indices [elements, warps] or [elements, 1]."""
        line, column = np.divmod(np.arange(self.side**2)[:, None], self.side)
        if self.transposed:
            line, column = column, line
        offset, stride = self.pointer.offset(frame), self.stride(frame)
        self._check_alignment(frame, offset, self.address_bytes, "address")
        self._check_alignment(frame, stride, self.stride_bytes, "stride")
        return per_warp(frame, offset) + line * per_warp(frame, stride) + column

    def _check_alignment(self, frame: Frame, value: Array, unit: int, what: str) -> None:
        view = frame.views[self.pointer.key]
        odd = frame.active.select(value * view.array.itemsize % unit != 0)
        if odd.any():
            lane = int(odd.argmax())
            at = frame.active.select(value)[lane]
            told = f"uses a warp matrix in {view.name} whose {what}, {at}, is not {unit} bytes even"
            complain(Misaligned, frame.active, lane, told)


def filling(slot: Slot, value: Eval) -> Eval:
    """Every element becomes `value`."""

    def run(frame: Frame) -> Array:
        fragments, at = slot.find(frame)
        fragments.put(leaders(frame), at, per_warp(frame, value(frame)))
        return DONE

    return run


def loading(slot: Slot, tile: Tile) -> Eval:
    """A fragment from memory."""

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        fragments.put(first, at, frame.views[tile.pointer.key].load(first, tile.places(frame)))
        return DONE

    return run


def storing(slot: Slot, tile: Tile, plan: Plan) -> Eval:
    """A fragment to memory."""
    plan.usage.written.add(tile.pointer.root)

    def run(frame: Frame) -> Array:
        first = leaders(frame)
        fragments, at = slot.find(frame)
        value = fragments.get(first, at)
        frame.views[tile.pointer.key].store(first, tile.places(frame), value)
        return DONE

    return run


def multiplying(node: tvm.ir.Call, plan: Plan, compile_expr: Compile) -> Eval:
    """d = a b + c in float32, of arguments d, its index, a, its index and so on."""
    args = list(node.args)
    d, a, b, c = (slot_of(args[i], args[i + 1], plan, compile_expr) for i in range(0, 8, 2))

    def run(frame: Frame) -> Array:
        first = leaders(frame)

        def matrices(slot: Slot) -> Array:
            fragments, at = slot.find(frame)
            flat = fragments.get(first, at)
            side = isqrt(len(flat))
            return flat.T.reshape(-1, side, side).astype(np.float32)

        total = matrices(a) @ matrices(b) + matrices(c)
        fragments, at = d.find(frame)
        flat = total.reshape(len(total), -1).T
        fragments.put(first, at, flat.astype(fragments.data.dtype))
        return DONE

    return run
