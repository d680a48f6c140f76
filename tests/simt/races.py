"""Data races: who touched each unit of memory last, and in which barrier interval.

Lockstep execution hides a missing barrier, so accesses are compared instead of values. Two
accesses of one unit, one of them a write, are ordered if one thread made both, or if threads
of one block made them in different barrier intervals; nothing orders two blocks.
"""

from dataclasses import dataclass

import numpy as np

from .grid import Threads

Array = np.ndarray

NOBODY = -1
ATOMIC = -2  # atomic updates do not race with each other
MANY = -3  # more than one reader


@dataclass(frozen=True, slots=True)
class Conflict:
    """Flat position in the access, and the thread met there (NOBODY, ATOMIC, MANY or a number)."""

    at: int
    other: int


class RaceTracker:
    """Last writer and readers of each unit; `stamp` names a block's barrier interval."""

    def __init__(self, units: int, *, between_blocks: bool) -> None:
        self.between_blocks = between_blocks
        self.writer = np.full(units, NOBODY, np.int64)
        self.write_stamp = np.full(units, NOBODY, np.int64)
        self.reader = np.full(units, NOBODY, np.int64)
        self.read_stamp = np.full(units, NOBODY, np.int64)
        if between_blocks:
            self.writer_block = np.full(units, NOBODY, np.int64)
            self.reader_block = np.full(units, NOBODY, np.int64)

    def read(self, unit: Array, who: Threads, stamp: Array) -> Conflict | None:
        """Record reads, unit [..., lanes]; the first that races."""
        written = self.writer[unit]
        raced = (self.write_stamp[unit] == stamp) & (written != who.thread)
        self._remember_readers(unit, who.thread, stamp)
        if self.between_blocks:
            block = self.writer_block[unit]
            raced |= (block != NOBODY) & (block != who.block)
            self._remember_blocks(unit, who.block)
        return _first(raced, written)

    def write(
        self, unit: Array, who: Threads, stamp: Array, *, atomic: bool = False
    ) -> Conflict | None:
        """Record writes, unit [..., lanes]; the first that races."""
        thread = np.full_like(who.thread, ATOMIC) if atomic else who.thread
        written, read = self.writer[unit], self.reader[unit]
        after_write = (self.write_stamp[unit] == stamp) & (written != thread)
        after_read = (self.read_stamp[unit] == stamp) & (read != who.thread)
        if self.between_blocks:
            mine = np.full_like(who.block, ATOMIC) if atomic else who.block
            block = self.writer_block[unit]
            after_write |= (block != NOBODY) & (block != mine)
            block = self.reader_block[unit]
            after_read |= (block != NOBODY) & (block != who.block)
            self.writer_block[unit] = mine
        self.writer[unit] = thread
        self.write_stamp[unit] = stamp
        kept = self.writer[unit]  # of several lanes that store to one unit, the last stays
        together = kept != thread
        if not (after_write.any() or after_read.any() or together.any()):
            return None
        other = np.where(after_write, written, np.where(after_read, read, kept))
        return _first(after_write | after_read | together, other)

    def _remember_readers(self, unit: Array, thread: Array, stamp: Array) -> None:
        before = self.reader[unit]
        joined = (self.read_stamp[unit] == stamp) & (before != thread)
        now = np.where(joined, MANY, thread)
        self.read_stamp[unit] = stamp
        _assign_or_many(self.reader, unit, now)

    def _remember_blocks(self, unit: Array, block: Array) -> None:
        before = self.reader_block[unit]
        now = np.where((before != NOBODY) & (before != block), MANY, block)
        _assign_or_many(self.reader_block, unit, now)


def _assign_or_many(table: Array, unit: Array, value: Array) -> None:
    """table[unit] = value, and MANY where the lanes of one access disagree."""
    table[unit] = value
    lost = table[unit] != value
    if lost.any():
        table[unit[lost]] = MANY


def _first(raced: Array, other: Array) -> Conflict | None:
    if not raced.any():
        return None
    at = int(raced.argmax())
    return Conflict(at, int(np.broadcast_to(other, raced.shape).flat[at]))
