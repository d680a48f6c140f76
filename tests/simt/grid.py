"""The shape of a launch: who the threads are and what a launch cost."""

from dataclasses import dataclass

import numpy as np

Dim3 = tuple[int, int, int]
Array = np.ndarray

WARP = 32


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: extents (x, y, z), bytes of memory, buffers bound."""

    name: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    local_bytes: int
    global_buffers: int


Launches = tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The threads of a launch; thread t of block b is number b * threads + t, x fastest."""

    kernel: str
    grid: Dim3
    block: Dim3

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return int(np.prod(self.grid))

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return int(np.prod(self.block))

    def place(self, thread: int) -> str:
        """Where a thread is, in words."""
        block, inner = divmod(int(thread), self.threads)
        return f"block {_coordinates(block, self.grid)} thread {_coordinates(inner, self.block)}"


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads that run in lockstep: for each its number, its block's, and the block's place.

    `thread`, `block` and `slot` are int64 [lanes]; `slot` counts blocks from the chunk's first.
    """

    grid: Grid
    thread: Array
    block: Array
    slot: Array

    def pick(self, lanes: Array) -> "Threads":
        """Only these lanes."""
        return Threads(self.grid, self.thread[lanes], self.block[lanes], self.slot[lanes])

    def __len__(self) -> int:
        return len(self.thread)


def threads_of(grid: Grid, first: int, last: int) -> Threads:
    """The threads of blocks `first` up to `last`."""
    thread = np.arange(first * grid.threads, last * grid.threads)
    block = thread // grid.threads
    return Threads(grid, thread, block, block - first)


def axis_values(number: Array, extents: Dim3, axis: int) -> Array:
    """Coordinate `axis` of linear numbers."""
    inner = int(np.prod(extents[:axis]))
    return number // inner % extents[axis]


def _coordinates(number: int, extents: Dim3) -> Dim3:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)
