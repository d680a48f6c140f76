"""Where tensors with known lifetimes lie in one arena, so that it is small: pure arithmetic.

Two tensors that are alive in one step must not share a byte. The smallest arena is NP-hard
to find (dynamic storage allocation), but no arena is smaller than what is alive at once, so
a placement that reaches this bound is the best, and the search ends there. Effort is counted
in comparisons, never in time: equal lifetimes give equal placements on every machine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

ALIGNMENT: Final = 64  # bytes: a cache line, and the widest vector
EFFORT: Final = 2_000_000  # comparisons of two lifetimes; about a second


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor of `nbytes`, alive from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int

    @property
    def padded(self) -> int:
        """Bytes up to the next place where a tensor may begin."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    def meets(self, other: "Lifetime") -> bool:
        """Whether there is a step in which both are alive."""
        return self.first <= other.last and other.first <= self.last


def live_bytes(lifetimes: Iterable[Lifetime], steps: int) -> list[int]:
    """What is alive in each of `steps` steps."""
    change = [0] * (steps + 1)
    for one in lifetimes:
        change[one.first] += one.nbytes
        change[one.last + 1] -= one.nbytes
    alive, total = [], 0
    for delta in change[:steps]:
        total += delta
        alive.append(total)
    return alive


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes of the step in which most are alive: no arena is smaller."""
    steps = max((one.last for one in lifetimes), default=-1) + 1
    return max(live_bytes(lifetimes, steps), default=0)


def _padded_bound(lifetimes: Iterable[Lifetime]) -> int:
    """The bound of tensors that fill their last cache line: an arena of it can't be bettered."""
    return lower_bound([Lifetime(one.padded, one.first, one.last) for one in lifetimes])


def extent(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    """Bytes of an arena that holds each lifetime at its offset."""
    ends = (at + one.nbytes for one, at in zip(lifetimes, offsets, strict=True))
    return max(ends, default=0)


def overlap(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two lifetimes that share a byte in some step; None: the placement is sound."""
    order = sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first)
    alive: list[int] = []
    for i in order:
        one, at = lifetimes[i], offsets[i]
        alive = [j for j in alive if lifetimes[j].last >= one.first]
        for j in alive:
            if at < offsets[j] + lifetimes[j].nbytes and offsets[j] < at + one.nbytes:
                return j, i
        alive.append(i)
    return None


def place(lifetimes: Sequence[Lifetime], effort: int = EFFORT) -> list[int]:
    """An offset for each lifetime, a multiple of ALIGNMENT: best fit, improved by search."""
    if not lifetimes:
        return []
    search = _Search(lifetimes, effort)
    placed = search.improved(search.best_of_orders())
    stacked = _stacked(lifetimes, slots(lifetimes))
    best = min(placed, stacked, key=lambda offsets: extent(lifetimes, offsets))
    assert overlap(lifetimes, best) is None
    return best


def _stacked(lifetimes: Sequence[Lifetime], chosen: Sequence[int]) -> list[int]:
    """Slots, one above the other."""
    sizes = slot_sizes([Lifetime(one.padded, 0, 0) for one in lifetimes], chosen)
    starts = [sum(sizes[:slot]) for slot in range(len(sizes))]
    return [starts[slot] for slot in chosen]


def slots(lifetimes: Sequence[Lifetime]) -> list[int]:
    """A slot for each lifetime, where every tensor begins at the start of its own storage.

    Larger ones first, so a slot is as large as its first tensor and a later one always fits;
    of the slots that are free in all its steps, a tensor takes the one that is busy most.
    """
    chosen = [0] * len(lifetimes)
    members: list[list[Lifetime]] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: _by_size(lifetimes[i], i)):
        one = lifetimes[i]
        free = [s for s, held in enumerate(members) if not any(map(one.meets, held))]
        if free:
            chosen[i] = max(free, key=lambda s: (_distance(one, members[s]), -s))
        else:
            chosen[i] = len(members)
            members.append([])
        members[chosen[i]].append(one)
    return chosen


def slot_sizes(lifetimes: Sequence[Lifetime], chosen: Sequence[int]) -> list[int]:
    """Bytes of each slot: its largest tensor."""
    sizes = [0] * (max(chosen, default=-1) + 1)
    for one, slot in zip(lifetimes, chosen, strict=True):
        sizes[slot] = max(sizes[slot], one.nbytes)
    return sizes


def _distance(one: Lifetime, held: Sequence[Lifetime]) -> int:
    """Minus the steps between `one` and the nearest tensor of a slot: near ones leave no holes."""
    return -min(max(other.first - one.last, one.first - other.last) for other in held)


def _by_size(one: Lifetime, index: int) -> tuple[int, int, int]:
    return -one.nbytes, one.first, index


def _by_area(one: Lifetime, index: int) -> tuple[int, int, int]:
    return -one.nbytes * (one.last - one.first + 1), one.first, index


def _by_length(one: Lifetime, index: int) -> tuple[int, int, int, int]:
    return one.first - one.last, -one.nbytes, one.first, index


def _by_time(one: Lifetime, index: int) -> tuple[int, int, int]:
    return one.first, -one.nbytes, index


# In what order tensors choose their place; the search starts from the best of these.
ORDERS: Final[tuple[Callable[[Lifetime, int], tuple[int, ...]], ...]] = (
    _by_size,
    _by_area,
    _by_length,
    _by_time,
)


@dataclass(slots=True)
class _Search:
    """Orders of the same tensors, placed by best fit one after another."""

    lifetimes: Sequence[Lifetime]
    effort: int  # comparisons left
    meeting: list[list[int]] = field(default_factory=list)  # who is alive together with whom
    bound: int = 0

    def __post_init__(self) -> None:
        self.bound = _padded_bound(self.lifetimes)
        self.meeting = [[] for _ in self.lifetimes]
        alive: list[int] = []
        for i in sorted(range(len(self.lifetimes)), key=lambda i: self.lifetimes[i].first):
            one = self.lifetimes[i]
            alive = [j for j in alive if self.lifetimes[j].last >= one.first]
            for j in alive:
                self.meeting[i].append(j)
                self.meeting[j].append(i)
            alive.append(i)

    def best_of_orders(self) -> list[int]:
        """The best of ORDERS, as an order of indices."""
        indices = range(len(self.lifetimes))
        starts = [sorted(indices, key=lambda i: key(self.lifetimes[i], i)) for key in ORDERS]
        return min(starts, key=lambda order: extent(self.lifetimes, self.offsets(order)))

    def improved(self, order: list[int]) -> list[int]:
        """Offsets after moving, again and again, who makes the arena largest to the front.

        Whoever chooses early lies low. A move that helps or does no harm is kept; others are
        undone, and the next place to move to is tried.
        """
        best = self.offsets(order)
        size, round_ = extent(self.lifetimes, best), 0
        while size > self.bound and self.effort > 0 and round_ < 50 * len(order):
            offsets = self.offsets(order)
            top = self._highest(order, offsets, round_)
            at = order.index(top)
            to = _halving(at, round_)
            trial = [*order[:to], top, *order[to:at], *order[at + 1 :]]
            placed = self.offsets(trial)
            if extent(self.lifetimes, placed) <= extent(self.lifetimes, offsets):
                order = trial
            if extent(self.lifetimes, placed) < size:
                best, size = placed, extent(self.lifetimes, placed)
            round_ += 1
        return best

    def _highest(self, order: Sequence[int], offsets: Sequence[int], turn: int) -> int:
        """One of those that end at the top, or of those alive with it: a new one each turn."""
        top = max(order, key=lambda i: (offsets[i] + self.lifetimes[i].nbytes, -i))
        crowd = [top, *sorted(self.meeting[top], key=lambda j: -offsets[j])]
        return crowd[turn % len(crowd)]

    def offsets(self, order: Iterable[int]) -> list[int]:
        """Each in turn takes the tightest gap that is free in all its steps, or the lowest top."""
        placed: list[int] = [-1] * len(self.lifetimes)
        for i in order:
            taken = sorted(
                (placed[j], placed[j] + self.lifetimes[j].padded)
                for j in self.meeting[i]
                if placed[j] >= 0
            )
            self.effort -= len(self.meeting[i]) + 1
            placed[i] = _best_gap(taken, self.lifetimes[i].padded)
        return placed


def _best_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The start of the smallest gap between sorted ranges that holds `nbytes`; else their end."""
    top, best, waste = 0, -1, 0
    for start, end in taken:
        gap = start - top
        if gap >= nbytes and (best < 0 or gap - nbytes < waste):
            best, waste = top, gap - nbytes
        top = max(top, end)
    return top if best < 0 else best


def _halving(at: int, turn: int) -> int:
    """A place before `at`: the front, its half, its three quarters, ..., by turns."""
    return at - (at >> (turn % max(1, at.bit_length())))
