"""The state of running code: which threads are active, the values of variables, the memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .grid import Threads

Array = np.ndarray


class Clock:
    """Counts each block's barriers; a stamp names one barrier interval of one block."""

    def __init__(self, slots: int, blocks: int) -> None:
        self.intervals = np.zeros(slots, np.int64)
        self.blocks = blocks
        self.version = 0

    def tick(self, slots: Array) -> None:
        """These blocks, by their place in the chunk, passed a barrier."""
        self.intervals[slots] += 1
        self.version += 1

    def stamps(self, threads: Threads) -> Array:
        """The present interval of each thread."""
        return self.intervals[threads.slot] * self.blocks + threads.block


class Active:
    """Lanes that run in lockstep, all of them (`mask` None) or those where `mask` holds."""

    def __init__(self, threads: Threads, clock: Clock, mask: Array | None = None) -> None:
        self.threads = threads
        self.clock = clock
        self.mask = mask
        self.lanes = None if mask is None else np.flatnonzero(mask)
        self.who = threads if self.lanes is None else threads.pick(self.lanes)
        self._stamps = (-1, self.who.block)

    @property
    def stamps(self) -> Array:
        """The barrier interval of each active lane."""
        version, stamps = self._stamps
        if version != self.clock.version:
            stamps = self.clock.stamps(self.who)
            self._stamps = (self.clock.version, stamps)
        return stamps

    def select(self, value: Array) -> Array:
        """A value [..., 1 or lanes] at the active lanes alone, [..., active]."""
        if value.shape[-1] == 1:
            return np.broadcast_to(value, (*value.shape[:-1], len(self.who)))
        return value if self.lanes is None else value[..., self.lanes]

    def narrow(self, condition: Array) -> "Active | None":
        """The active lanes where `condition` [1 or lanes] holds; None if there are none."""
        if condition.shape[-1] == 1:
            return self if condition[0] else None
        mask = condition if self.mask is None else self.mask & condition
        if not mask.any():
            return None
        return self if self.mask is None and mask.all() else Active(self.threads, self.clock, mask)

    def pick(self, lanes: Array) -> "Active":
        """A lockstep group of some lanes, such as the first of each warp."""
        mask = None if self.mask is None else self.mask[lanes]
        return Active(self.threads.pick(lanes), self.clock, mask)


@dataclass(slots=True)
class Copies:
    """Asynchronous copies that nobody has waited for, and how many groups each thread has ended."""

    groups: Array  # [threads]
    copies: list[object] = field(default_factory=list)


@dataclass(slots=True)
class Frame:
    """What a running statement sees; `views` and `fragments` are keyed by buffer."""

    active: Active
    values: dict[int, Array] = field(default_factory=dict)
    views: dict[int, object] = field(default_factory=dict)
    fragments: dict[int, object] = field(default_factory=dict)
    copies: Copies | None = None

    @contextmanager
    def only(self, active: Active) -> Iterator[None]:
        """Run the body with fewer active lanes."""
        before, self.active = self.active, active
        try:
            yield
        finally:
            self.active = before
