"""Fragments of small matrices that the threads of a warp, or simdgroup, hold together.

Where it is not specified which thread holds which element, a fragment is kept per warp, and its
accesses of memory count as those of the warp's first thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from .dtypes import constant
from .errors import DivergentBarrier, OutOfBounds, UninitializedRead, Unsupported
from .frame import Active, Frame
from .grid import WARP, Threads
from .memory import complain
from .plan import Array, Buffer, Eval, Plan

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
