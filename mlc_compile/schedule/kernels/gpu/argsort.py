"""Sort probabilities on the device, largest first: a radix sort, stable, with nothing atomic.

Keys are bits of float32, turned so that larger numbers have smaller keys. A pass sorts by one
digit, from the lowest: its first launch counts the digits of each tile; in the second, every
block adds up the counts of all tiles, so it knows where its own digits begin, and moves its tile.
A thread owns a digit, and meets those of the tile in their order: equal ones stay in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

DIGIT: Final = 8  # bits
BINS: Final = 2**DIGIT  # digits there are; a thread owns one
PASSES: Final = 32 // DIGIT
TILE: Final = 4 * BINS  # items of a block: digits, keys and ids in shared memory are 12 KiB
NO_BIN: Final = BINS  # the digit of what is past the end
U32: Final = "uint32"
I32: Final = "int32"


def tiles_of(vocab: int) -> int:
    """Blocks of a launch."""
    return -(-vocab // TILE)


def argsort(vocab: int, device: Device) -> tirx.PrimFunc:
    """x[1, vocab] -> sorted[1, vocab] descending, order i32[1, vocab]; of equals the first first.

    Five workspaces follow: keys and ids, twice, and counts. -0 counts as 0, and comes out as it.
    """
    assert device.threads >= BINS, "a thread owns a digit"
    with v.kernel() as builder:
        x = v.argument("x", (1, vocab))
        results = (v.argument("sorted", (1, vocab)), v.argument("order", (1, vocab), I32))
        work = [
            (v.argument(f"{side}_keys", (vocab,), U32), v.argument(f"{side}_ids", (vocab,), I32))
            for side in ("even", "odd")
        ]
        counts = v.argument("counts", (tiles_of(vocab), BINS), I32)
        for number in range(PASSES):
            source = _Given(x) if number == 0 else _Work(*work[(number - 1) % 2])
            sink = _Results(*results) if number == PASSES - 1 else _Work(*work[number % 2])
            with g.launch(tiles_of(vocab), threads=BINS) as (tile, thread):
                _count(_Tile(vocab, number, tile, thread), source, counts)
            with g.launch(tiles_of(vocab), threads=BINS) as (tile, thread):
                _move(_Tile(vocab, number, tile, thread), source, sink, counts)
    return builder.get()


def key_of(x: Expr) -> Expr:
    """A float32 as a number that is smaller the larger it is."""
    positive = T.bind(tirx.Select(x == v.const(0.0), v.const(0.0), x))
    bits = T.bind(tirx.reinterpret(U32, positive))
    negative = (bits >> _bits(31)) == _bits(1)
    return tirx.Select(negative, bits, tirx.bitwise_xor(bits, _bits(2**31 - 1)))


def value_of(key: Expr) -> Expr:
    """The float32 of a key."""
    negative = (key >> _bits(31)) == _bits(1)
    bits = tirx.Select(negative, key, tirx.bitwise_xor(key, _bits(2**31 - 1)))
    return tirx.reinterpret(v.F32, bits)


@dataclass(frozen=True, slots=True)
class _Given:
    """What is to be sorted."""

    x: Buffer

    def read(self, i: Expr) -> tuple[Expr, Expr]:
        """The key and the id of item i."""
        return T.bind(key_of(T.bind(self.x[0, i]))), i


@dataclass(frozen=True, slots=True)
class _Work:
    """What a pass leaves to the next."""

    keys: Buffer
    ids: Buffer

    def read(self, i: Expr) -> tuple[Expr, Expr]:
        """The key and the id of item i."""
        return T.bind(self.keys[i]), T.bind(self.ids[i])

    def write(self, i: Expr, key: Expr, item: Expr) -> None:
        """Put both in place i."""
        v.put(key, self.keys, i)
        v.put(item, self.ids, i)


@dataclass(frozen=True, slots=True)
class _Results:
    """What the last pass writes."""

    x: Buffer
    order: Buffer

    def write(self, i: Expr, key: Expr, item: Expr) -> None:
        """Put both in place i."""
        v.put(value_of(key), self.x, 0, i)
        v.put(item, self.order, 0, i)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A block's items in pass `number`, as one thread sees them."""

    vocab: int
    number: int
    tile: Expr
    thread: Expr

    @contextmanager
    def each(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Walk this thread's items: (place in the tile, item, the last one if it is past it)."""
        with T.serial(0, TILE // BINS) as j:
            place = T.bind(j * BINS + self.thread)
            item = T.bind(self.tile * TILE + place)
            yield place, item, T.bind(tirx.min(item, self.vocab - 1))

    def digit(self, key: Expr, item: Expr) -> Expr:
        """Of an item, as int32."""
        digit = (key >> _bits(DIGIT * self.number)) & _bits(BINS - 1)
        return tirx.Select(item < self.vocab, tirx.Cast(I32, digit), v.int32(NO_BIN))


def _count(tile: _Tile, source: _Given | _Work, counts: Buffer) -> None:
    """counts[tile, digit]."""
    digits, total = g.shared(TILE, dtype=I32), g.registers(1, dtype=I32)
    with tile.each() as (place, item, within):
        key, _ = source.read(within)
        v.put(tile.digit(key, item), digits, place)
    g.barrier()
    v.put(v.int32(0), total, 0)
    with T.serial(0, TILE) as j:
        v.put(total[0] + _one_if(digits[j] == tile.thread), total, 0)
    v.put(total[0], counts, tile.tile, tile.thread)


def _move(tile: _Tile, source: _Given | _Work, sink: _Work | _Results, counts: Buffer) -> None:
    """Every item of a tile to its place by this digit."""
    digits, ids = g.shared(TILE, dtype=I32), g.shared(TILE, dtype=I32)
    keys, sums = g.shared(TILE, dtype=U32), g.shared(BINS, dtype=I32)
    with tile.each() as (place, item, within):
        key, number = source.read(within)
        v.put(tile.digit(key, item), digits, place)
        v.put(key, keys, place)
        v.put(tirx.Cast(I32, number), ids, place)
    at = g.registers(1, dtype=I32)
    v.put(_start(tile, counts, sums), at, 0)
    with T.serial(0, TILE) as j:
        digit = T.bind(digits[j])  # TVM cannot place barriers around what a condition reads
        with T.If(digit == tile.thread), T.Then():
            sink.write(at[0], keys[j], ids[j])
            v.put(at[0] + 1, at, 0)


def _start(tile: _Tile, counts: Buffer, sums: Buffer) -> Expr:
    """Where this thread's digit begins in this tile's share of the result."""
    before, total = g.registers(1, dtype=I32), g.registers(1, dtype=I32)
    v.put(v.int32(0), before, 0)
    v.put(v.int32(0), total, 0)
    with T.serial(0, tiles_of(tile.vocab)) as other:
        count = T.bind(counts[other, tile.thread])
        v.put(total[0] + count, total, 0)
        v.put(before[0] + tirx.Select(other < tile.tile, count, v.int32(0)), before, 0)
    v.put(total[0], sums, tile.thread)
    g.barrier()
    step = 1
    while step < BINS:  # all smaller digits, this one included (Hillis and Steele 1986)
        smaller = sums[tirx.max(tile.thread - step, 0)]
        more = tirx.Select(tile.thread >= step, smaller, v.int32(0))
        added = T.bind(sums[tile.thread] + more)
        g.barrier()
        v.put(added, sums, tile.thread)
        g.barrier()
        step *= 2
    return sums[tile.thread] - total[0] + before[0]


def _one_if(condition: Expr) -> Expr:
    return tirx.Select(condition, v.int32(1), v.int32(0))


def _bits(value: int) -> Expr:
    return tirx.const(value, U32)
