"""Draw a token from sorted probabilities: the fewest that reach top_p, by one uniform number.

The first launch adds up parts of them; in the second, one block walks the parts, then the items
of one of them: to where the mass so far reaches p, and again to where it exceeds the share of
that mass which the uniform number says.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

THREADS: Final = 256
PARTS: Final = THREADS  # the most
ENOUGH: Final = 1e30  # more mass than there is


def part_size(vocab: int) -> int:
    """Items of a part, a multiple of THREADS."""
    return -(-vocab // (PARTS * THREADS)) * THREADS


def parts_of(vocab: int) -> int:
    """How many there are; the first workspace's length."""
    return -(-vocab // part_size(vocab))


def draw_sorted(vocab: int, device: Device) -> tirx.PrimFunc:
    """sorted[1, v], order i32[1, v], uniform[1], rows i32[1], top_p[1] -> token i32[1].

    A workspace of `parts_of` floats follows. There is one row, so `rows` can but say 0 and is not
    read. Of top_p 1 everything stays in.
    """
    assert device.threads >= THREADS, "a thread has a part"
    with v.kernel() as builder:
        x = v.argument("sorted", (1, vocab))
        order = v.argument("order", (1, vocab), "int32")
        uniform = v.argument("uniform", (1,))
        v.argument("rows", (1,), "int32")
        top_p = v.argument("top_p", (1,))
        token = v.argument("token", (1,), "int32")
        work = v.argument("work", (parts_of(vocab),))
        with g.launch(parts_of(vocab), threads=THREADS) as (part, thread):
            _add_up(x, vocab, part, thread, work)
        with g.launch(1, threads=THREADS) as (_, thread):
            walk = _Walk.make(x, vocab, thread, work)
            p = T.bind(top_p[0])
            need = tirx.Select(p >= v.const(1.0), v.const(ENOUGH), p)
            cut = walk.first(need, reaches=True, last=v.int32(vocab - 1))
            mass = T.bind(cut.mass * uniform[0])
            drawn = walk.first(mass, reaches=False, last=cut.item)
            with T.If(thread == 0), T.Then():
                v.put(order[0, drawn.item], token, 0)
    return builder.get()


def _add_up(x: Buffer, vocab: int, part: Expr, thread: Expr, work: Buffer) -> None:
    scratch, total = g.shared(THREADS), g.registers(1)
    v.put(v.const(0.0), total, 0)
    size = part_size(vocab)
    with T.serial(0, size // THREADS) as j:
        v.put(total[0] + _at(x, vocab, part * size + j * THREADS + thread), total, 0)
    mass = g.block_sum(total[0], thread, THREADS, scratch)
    with T.If(thread == 0), T.Then():
        v.put(mass, work, part)


def _at(x: Buffer, vocab: int, item: Expr) -> Expr:
    """The probability of an item, 0 past the last one."""
    return tirx.Select(item < vocab, x[0, tirx.min(item, vocab - 1)], v.const(0.0))


@dataclass(frozen=True, slots=True)
class _Place:
    """An item, and the mass up to it: with its own, and without."""

    item: Expr
    mass: Expr
    before: Expr


@dataclass(frozen=True, slots=True)
class _Walk:
    """One block's view of all; every thread walks the same way."""

    x: Buffer
    vocab: int
    thread: Expr
    masses: Buffer  # of the parts, shared
    items: Buffer  # of one part, shared

    @classmethod
    def make(cls, x: Buffer, vocab: int, thread: Expr, work: Buffer) -> "_Walk":
        masses, items = g.shared(PARTS), g.shared(part_size(vocab))
        parts = parts_of(vocab)
        mass = tirx.Select(thread < parts, work[tirx.min(thread, parts - 1)], v.const(0.0))
        v.put(mass, masses, thread)
        g.barrier()
        return cls(x, vocab, thread, masses, items)

    def first(self, target: Expr, *, reaches: bool, last: Expr) -> _Place:
        """The first item at which the mass so far reaches the target, or exceeds it.

        None after `last`; if rounding leaves the target out of reach, the last with any mass.
        """
        size = part_size(self.vocab)
        start = _Place(v.int32(0), v.const(0.0), v.const(0.0))
        final = T.bind(last // size)
        part = _first(self.masses, parts_of(self.vocab), final, start, target, reaches)
        g.barrier()
        with T.serial(0, size // THREADS) as j:
            place = T.bind(j * THREADS + self.thread)
            v.put(_at(self.x, self.vocab, part.item * size + place), self.items, place)
        g.barrier()
        within = T.bind(last - part.item * size)
        found = _first(self.items, size, within, part, target, reaches)
        return _Place(T.bind(part.item * size + found.item), found.mass, found.before)


def _first(
    masses: Buffer, count: int, last: Expr, start: _Place, target: Expr, reaches: bool
) -> _Place:
    """As `_Walk.first`, of masses that begin after `start.before`."""
    item, stopped = (g.registers(1, dtype="int32") for _ in range(2))
    mass, end, before = (g.registers(1) for _ in range(3))
    for register in (item, stopped):
        v.put(v.int32(0), register, 0)
    for register in (mass, end, before):
        v.put(start.before, register, 0)
    with T.serial(v.int32(0), v.int32(count)) as i:
        mine = T.bind(masses[i])
        with T.If(tirx.all(stopped[0] == 0, i <= last, mine > v.const(0.0))), T.Then():
            v.put(i, item, 0)
            v.put(mass[0], before, 0)
            v.put(mass[0] + mine, end, 0)
            hit = end[0] >= target if reaches else end[0] > target
            v.put(tirx.Select(hit, v.int32(1), v.int32(0)), stopped, 0)
            v.put(end[0], mass, 0)
    return _Place(T.bind(item[0]), T.bind(end[0]), T.bind(before[0]))
