"""Memory and the checks on every access: bounds, initialization, races.

Indices and values are [threads] or, for vectors, [n, threads]; the last axis may be 1 where
all threads agree. Only active lanes are checked and stored.
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from .errors import DataRace, Misaligned, OutOfBounds, SimtError, UninitializedRead
from .frame import Active
from .races import ATOMIC, MANY, NOBODY, Conflict, RaceTracker

Array = np.ndarray


@dataclass(slots=True)
class FlatMemory:
    """Global memory, or shared memory of several blocks one after another.

    `stride` is a block's share in bytes, 0 for global memory; `unit` is the smallest element
    that any view has, the grain of `written` and `tracker`.
    """

    data: Array  # uint8
    unit: int
    stride: int
    written: Array | None
    tracker: RaceTracker | None
    awaited: Array | None = None  # bool, like `written`: asynchronous copies are on their way


@dataclass(slots=True)
class LocalMemory:
    """Memory of each thread's own: `data` and `written` are [size, lanes]."""

    data: Array
    written: Array
    complete: bytearray  # per row: every lane has written it


class FlatView:
    """A buffer in flat memory: `size` elements of one numpy type per block."""

    def __init__(self, name: str, memory: FlatMemory, dtype: np.dtype, size: int) -> None:
        self.name = name
        self.memory = memory
        self.array = memory.data.view(dtype)
        self.size = size
        self.per_block = memory.stride // dtype.itemsize
        self.units = dtype.itemsize // memory.unit

    def load(self, active: Active, index: Array) -> Array:
        """Elements at `index`."""
        index = self._place(active, index, "read")
        memory = self.memory
        if memory.written is not None or memory.tracker is not None:
            unit = self._unit(active.select(index))
            if memory.written is not None:
                self._check_written(active, unit)
            if memory.tracker is not None:
                conflict = memory.tracker.read(unit, active.who, active.stamps)
                self._check(active, unit, conflict, "reads")
        return self.array.take(index)

    def store(self, active: Active, index: Array, value: Array) -> None:
        """Write the elements at `index` from the active lanes."""
        index = active.select(self._place(active, index, "write"))
        self._touch(active, index)
        self.array[index] = active.select(value)

    def expect(self, active: Active, index: Array) -> None:
        """The elements at `index` will be written: they are touched now, and hold nothing."""
        index = active.select(self._place(active, index, "write"))
        self._touch(active, index)
        memory, unit = self.memory, self._unit(index)
        if memory.awaited is None:
            memory.awaited = np.zeros(len(memory.data) // memory.unit, bool)
        memory.awaited[unit] = True
        if memory.written is not None:
            memory.written[unit] = False

    def arrive(self, active: Active, index: Array, value: Array) -> None:
        """What was expected is written."""
        placed = active.select(self._place(active, index, "write"))
        self.memory.awaited[self._unit(placed)] = False
        self.store(active, index, value)

    def atomic_add(self, active: Active, index: Array, value: Array) -> None:
        """Add to elements one thread after another; atomic updates race with plain accesses."""
        index = active.select(self._place(active, index, "atomic add"))
        self._touch(active, index, atomic=True)
        np.add.at(self.array, index, active.select(value))

    def _touch(self, active: Active, index: Array, *, atomic: bool = False) -> None:
        memory = self.memory
        if memory.written is None and memory.tracker is None:
            return
        unit = self._unit(index)
        if memory.awaited is not None and memory.awaited[unit].any():
            at = int(memory.awaited[unit].argmax())
            what = f"writes {self._element(unit, at)}, to where a copy is on its way"
            complain(DataRace, active, at % unit.shape[-1], what)
        if memory.tracker is not None:
            conflict = memory.tracker.write(unit, active.who, active.stamps, atomic=atomic)
            self._check(active, unit, conflict, "writes")
        if memory.written is not None:
            memory.written[unit] = True

    def _place(self, active: Active, index: Array, action: str) -> Array:
        """Index in the whole array; inactive lanes that are outside are moved inside."""
        if index.min() < 0 or index.max() >= self.size:
            outside = (index < 0) | (index >= self.size)
            if active.select(outside).any():
                _refuse_index(self, active, index, outside, action)
            index = np.where(outside, 0, index)
        return index + active.threads.slot * self.per_block if self.per_block else index

    def _unit(self, index: Array) -> Array:
        if self.units == 1:
            return index
        parts = np.arange(self.units).reshape(-1, *[1] * index.ndim)
        return index * self.units + parts

    def _check_written(self, active: Active, unit: Array) -> None:
        written = self.memory.written[unit]
        if not written.all():
            at = int((~written).argmax())
            what = f"reads {self._element(unit, at)}, which no thread has written"
            complain(UninitializedRead, active, at % unit.shape[-1], what)

    def _check(self, active: Active, unit: Array, conflict: Conflict | None, action: str) -> None:
        if conflict is None:
            return
        grid = active.threads.grid
        other = "other threads" if conflict.other in (ATOMIC, MANY, NOBODY) else None
        other = other or grid.place(conflict.other)
        what = f"{action} {self._element(unit, conflict.at)}, which {other} touched unordered"
        complain(DataRace, active, conflict.at % unit.shape[-1], what)

    def _element(self, unit: Array, at: int) -> str:
        index = int(unit.flat[at]) // self.units
        return f"{self.name}[{index % self.per_block if self.per_block else index}]"


class LocalView:
    """A buffer of each thread's own."""

    def __init__(self, name: str, memory: LocalMemory, dtype: np.dtype, size: int) -> None:
        self.name = name
        self.memory = memory
        self.array = memory.data.view(dtype)
        self.size = size

    def load(self, active: Active, index: Array) -> Array:
        """Elements at `index`; rows of the memory where all threads agree on it."""
        if index.shape == (1,):
            return self._load_row(active, int(index[0]))
        rows, lanes = self._place(active, index, "read")
        place = rows[..., 0] if rows.shape[-1] == 1 else (rows, lanes)
        written = self.memory.written[place]
        if not written.all():
            self._refuse_unwritten(active, index, written)
        return self.array[place]

    def _load_row(self, active: Active, row: int) -> Array:
        if not 0 <= row < self.size:
            self._place(active, np.array([row]), "read")
        if not self.memory.complete[row]:
            written = self.memory.written[row]
            if written.all():
                self.memory.complete[row] = 1
            else:
                self._refuse_unwritten(active, np.array([row]), written)
        return self.array[row]

    def store(self, active: Active, index: Array, value: Array) -> None:
        """Write the elements at `index` of the active lanes."""
        if index.shape == (1,) and 0 <= index[0] < self.size:
            self._store_row(active, int(index[0]), value)
            return
        rows, lanes = self._place(active, index, "write")
        if rows.shape[-1] == 1 and active.mask is None:
            self.array[rows[..., 0]] = value
            self.memory.written[rows[..., 0]] = True
            return
        shape = np.broadcast_shapes(rows.shape, lanes.shape, value.shape)
        lanes = active.select(np.broadcast_to(lanes, shape))
        rows = active.select(np.broadcast_to(rows, shape))
        self.array[rows, lanes] = active.select(np.broadcast_to(value, shape))
        self.memory.written[rows, lanes] = True

    def _store_row(self, active: Active, row: int, value: Array) -> None:
        if active.mask is None:
            self.array[row] = value
            if not self.memory.complete[row]:
                self.memory.written[row] = True
                self.memory.complete[row] = 1
            return
        np.copyto(self.array[row], value, where=active.mask)
        if not self.memory.complete[row]:
            self.memory.written[row] |= active.mask

    def forget(self, active: Active) -> None:
        """The buffer comes into being: nothing is written yet."""
        if any(self.memory.complete) or self.memory.written.any():
            self.memory.written[:, slice(None) if active.lanes is None else active.lanes] = False
            self.memory.complete[:] = bytes(len(self.memory.complete))

    def _place(self, active: Active, index: Array, action: str) -> tuple[Array, Array]:
        if index.min() < 0 or index.max() >= self.size:
            outside = (index < 0) | (index >= self.size)
            if active.select(outside).any():
                _refuse_index(self, active, index, outside, action)
            index = np.where(outside, 0, index)
        return index, np.arange(len(active.threads))

    def _refuse_unwritten(self, active: Active, index: Array, written: Array) -> None:
        missing = active.select(~written)
        if missing.any():
            at = int(missing.argmax())
            lane = at % missing.shape[-1]
            element = int(np.broadcast_to(active.select(index), missing.shape).flat[at])
            what = f"reads {self.name}[{element}], which it has not written"
            complain(UninitializedRead, active, lane, what)


View = FlatView | LocalView


def complain(error: type[SimtError], active: Active, lane: int, what: str) -> NoReturn:
    """Raise an error about the `lane`-th active lane."""
    grid = active.threads.grid
    raise error(f"{grid.kernel}: {grid.place(active.who.thread[lane])} {what}")


def check_even(active: Active, view: View, first: Array, unit: int, action: str) -> None:
    """Complain of an address, in elements of the view, that is not `unit` bytes even."""
    odd = active.select(first * view.array.itemsize % unit != 0)
    if odd.any():
        lane = int(odd.argmax())
        at = int(active.select(first)[lane])
        what = f"{action} at {view.name}[{at}], which is not {unit} bytes even"
        complain(Misaligned, active, lane, what)


def _refuse_index(view: View, active: Active, index: Array, outside: Array, action: str) -> None:
    bad, index = active.select(outside), active.select(index)
    at = int(bad.argmax())
    what = f"out of bounds: {action} of {view.name}[{int(index.flat[at])}], size {view.size}"
    complain(OutOfBounds, active, at % bad.shape[-1], what)
