"""Choose a token from logits on the device: the distribution of `runtime.sampler`, unsorted.

Temperature first, then the k largest logits, then among those the fewest whose share of the
mass reaches p; of equal logits at a cut those with the lowest ids stay in. The token is then
drawn by id: the first at which the mass so far exceeds uniform · all mass. Temperature 0 is the
case k = 1.

`sampler_search` finds both cuts, eight launches of a block for each part of the vocabulary. One
more adds up what is left in each part, and one block draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.sampler_search import (
    BINS,
    LAUNCHES,
    Input,
    Known,
    Search,
    inside,
    parts_of,
    value_of,
    workspace_shape,
)
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

MOST_TIES: Final = 2.0**24  # more than there are, and exact in float32


def sample(vocab: int, device: Device) -> tirx.PrimFunc:
    """logits[1, vocab], temperature[1], top_k i32[1], top_p[1], uniform[1] -> token i32[1].

    Two workspaces of `workspace_shape` follow, which launches read and write in turns. top_k 0
    and top_p 1 leave everything in; `uniform` is at least 0 and less than 1.
    """
    assert device.threads >= BINS, "a thread owns a bin"
    with v.kernel() as builder:
        given = Input(
            vocab,
            logits=v.argument("logits", (1, vocab)),
            temperature=v.argument("temperature", (1,)),
            top_k=v.argument("top_k", (1,), "int32"),
            top_p=v.argument("top_p", (1,)),
        )
        uniform = v.argument("uniform", (1,))
        token = v.argument("token", (1,), "int32")
        work = [v.argument(name, workspace_shape(vocab)) for name in ("even", "odd")]
        parts = parts_of(vocab).count
        for number in range(LAUNCHES):
            with g.launch(parts, threads=BINS) as (block, thread):
                search = Search(given, number, block, thread)
                search.count(search.known(work[number % 2 - 1]), work[number % 2])
        with g.launch(parts, threads=BINS) as (block, thread):
            search = Search(given, LAUNCHES, block, thread)
            _tally(search, search.known(work[LAUNCHES % 2 - 1]), work[LAUNCHES % 2])
        with g.launch(1, threads=BINS) as (_, thread):
            _draw(given, thread, work[LAUNCHES % 2], uniform, token)
    return builder.get()


def _tally(search: Search, known: Known, after: Buffer) -> None:
    """after[part]: the mass above the cut, and how many are at it; what is known in the state."""
    given, thread = search.given, search.thread
    known = _with_ties(given, known)
    mass, equal = g.registers(1), g.registers(1)
    v.put(v.const(0.0), mass, 0)
    v.put(v.const(0.0), equal, 0)
    with search.each_piece() as i:
        above, at = _weigh(given, i, known)
        v.put(mass[0] + above, mass, 0)
        v.put(equal[0] + at, equal, 0)
    scratch = g.shared(BINS)
    totals = []
    for part in (mass, equal):
        totals.append(T.bind(g.block_sum(part[0], thread, BINS, scratch)))
        g.barrier()
    with T.If(thread == 0), T.Then():
        for column, total in enumerate(totals):
            v.put(total, after, search.block, column)
    search.write_state(known, after)


def _with_ties(given: Input, known: Known) -> Known:
    """What is known when both cuts are: how many at the last one stay in."""
    weight = T.bind(given.weight(value_of(known.prefix), known.peak))
    enough = tirx.ceil(tirx.min(known.need, weight * v.const(MOST_TIES)) / weight)
    ties = tirx.Select(weight > v.const(0.0), enough, v.const(MOST_TIES))
    ties = T.bind(tirx.max(ties, v.const(1.0)))
    both = tirx.Select(known.prefix == known.cut, tirx.min(ties, known.ties), ties)
    return Known(known.prefix, known.need, known.cut, T.bind(both), known.peak)


def _weigh(given: Input, i: Expr, known: Known) -> tuple[Expr, Expr]:
    """The mass of token i if it is above the cut, and 1 if it is at it."""
    x, key = given.read(i)
    here = inside(i, given.vocab)
    above = tirx.Select(tirx.all(here, key > known.prefix), v.const(1.0), v.const(0.0))
    at = tirx.Select(tirx.all(here, key == known.prefix), v.const(1.0), v.const(0.0))
    return T.bind(given.weight(x, known.peak) * above), T.bind(at)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk arrived: the item, the mass it had to reach in it, ties left before it."""

    item: Expr
    target: Expr
    ties: Expr


def _draw(given: Input, thread: Expr, before: Buffer, uniform: Buffer, token: Buffer) -> None:
    """The token, by one block: which part has it, which thread's share of the part, which."""
    parts = parts_of(given.vocab)
    known = Known.read(before, parts.count)
    weight = T.bind(given.weight(value_of(known.prefix), known.peak))
    masses, equals = g.shared(BINS), g.shared(BINS)
    at = T.bind(tirx.min(thread, parts.count - 1))
    for column, sums in enumerate((masses, equals)):
        v.put(tirx.Select(thread < parts.count, before[at, column], v.const(0.0)), sums, thread)
    g.barrier()

    def shares(i: Expr) -> tuple[Expr, Expr]:
        return masses[i], equals[i]

    everything = _walk(BINS, shares, weight, _Place(v.int32(0), v.const(0.0), known.ties))[1]
    start = _Place(v.int32(0), T.bind(uniform[0] * everything), known.ties)
    part, _ = _walk(BINS, shares, weight, start)
    first = T.bind(part.item * parts.size + thread * (parts.size // BINS))
    sums = g.registers(2)
    v.put(v.const(0.0), sums, 0)
    v.put(v.const(0.0), sums, 1)
    with T.serial(0, parts.size // BINS) as j:
        for side, value in enumerate(_weigh(given, first + j, known)):
            v.put(sums[side] + value, sums, side)
    g.barrier()
    v.put(sums[0], masses, thread)
    v.put(sums[1], equals, thread)
    g.barrier()
    share, _ = _walk(BINS, shares, weight, part)
    base = T.bind(part.item * parts.size + share.item * (parts.size // BINS))
    last, _ = _walk(parts.size // BINS, lambda j: _weigh(given, base + j, known), weight, share)
    with T.If(thread == 0), T.Then():
        v.put(base + last.item, token, 0)


def _walk(
    count: int,
    term: Callable[[Expr], tuple[Expr, Expr]],
    weight: Expr,
    start: _Place,
) -> tuple[_Place, Expr]:
    """The first item at which the mass so far exceeds the target, and all mass.

    An item has mass above the cut, and ties at it, of `weight` each, while there are some
    left. Rounding may leave the target unreached: then it is the last item with any mass.
    """
    mass, ties = g.registers(1), g.registers(1)
    item, reached = g.registers(1, dtype="int32"), g.registers(1, dtype="int32")
    target, left = g.registers(1), g.registers(1)
    for value, register in ((v.const(0.0), mass), (start.ties, ties)):
        v.put(value, register, 0)
    for value, register in ((start.target, target), (start.ties, left)):
        v.put(value, register, 0)
    v.put(v.int32(0), item, 0)
    v.put(v.int32(0), reached, 0)
    with T.serial(v.int32(0), v.int32(count)) as i:
        above, equal = term(i)
        more = T.bind(above + tirx.min(equal, ties[0]) * weight)
        with T.If(tirx.all(reached[0] == 0, more > v.const(0.0))), T.Then():
            v.put(i, item, 0)
            v.put(start.target - mass[0], target, 0)
            v.put(ties[0], left, 0)
            passes = mass[0] + more > start.target
            v.put(tirx.Select(passes, v.int32(1), v.int32(0)), reached, 0)
        v.put(mass[0] + more, mass, 0)
        v.put(tirx.max(ties[0] - equal, v.const(0.0)), ties, 0)
    return _Place(T.bind(item[0]), T.bind(target[0]), T.bind(left[0])), T.bind(mass[0])
