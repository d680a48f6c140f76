"""Prefill attention on tensor cores: a warp has 16 rows, from queries to output, in registers.

As in FlashAttention-2 (Dao 2023), section 3.3: scores are a product's sums, each row of them in
four lanes; rounded, they are an operand of the next product. Keys and values come to shared
memory while the product before is computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import async_copy, mma
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_rows import KEY, VALUE, Rows
from mlc_compile.schedule.kernels.gpu.attention_tiling import MASKED
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

WARPS: Final = 4
KEYS: Final = 64  # at a time: 32 registers of scores
WIDEST: Final = 128  # head: 64 registers of output, and 32 of queries
HALVES: Final = 2  # rows of a lane
PIECE: Final = async_copy.BYTES // 2  # elements of a copy
PAIR: Final = 2 * mma.N  # columns of the two b that are loaded at once

PlaceOf = Callable[[Expr, Expr], g.Place]  # of a row and a column


@dataclass(frozen=True, slots=True)
class Warps:
    """Blocks of 4 warps and 64 rows, for heads of `d` float16."""

    d: int

    @staticmethod
    def fits(a: Attention, dtype: str, device: Device) -> bool:
        """Whether the device computes heads of this size and type so."""
        return device.tensor_cores and dtype == mma.DTYPE and a.d % mma.K == 0 and a.d <= WIDEST

    @property
    def rows(self) -> int:
        """Of a block."""
        return WARPS * mma.M

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARPS * g.SUBGROUP

    @property
    def pitch(self) -> int:
        """Elements of a row in shared memory: those of a matrix lie in different banks."""
        return self.d + PIECE

    @property
    def panel(self) -> int:
        """Elements of a tile of keys or values in shared memory."""
        return KEYS * self.pitch

    def attend(
        self, rows: Rows, thread: Expr, q: Buffer, o: Buffer, lse: Buffer, scale: Expr
    ) -> None:
        """As `Method.attend`."""
        assert self.rows <= KEYS, "queries come to where values will be"
        work = _Work(self, rows, thread, T.bind(thread % g.SUBGROUP), _State.make(self.d))
        seen = T.bind(rows.seen)
        panels = g.shared(2 * self.panel, dtype=mma.DTYPE)
        work.bring_queries(q, panels)
        with T.If(seen > 0), T.Then():
            work.bring(KEY, v.int32(0), panels)
        async_copy.end_group()
        work.take_queries(panels)
        with T.serial(0, g.blocks_of(seen, KEYS)) as i:
            base = T.bind(i * KEYS)
            async_copy.wait()  # for keys; and values, or queries, are no longer read
            work.bring(VALUE, base, panels)
            async_copy.end_group()
            scores = work.score(panels)
            work.mask(scores, base)
            weights = work.soften(scores, scale)
            async_copy.wait()  # for values; and keys are no longer read
            with T.If(base + KEYS < seen), T.Then():
                work.bring(KEY, base + KEYS, panels)
            async_copy.end_group()
            work.add_up(weights, panels)
        work.finish(o, lse, scale)


@dataclass(frozen=True, slots=True)
class _State:
    """What a lane holds of its two rows, in the order of `mma`'s elements."""

    q: Buffer  # an a for each 16 columns
    out: Buffer  # a c for each 8 columns, unnormalized
    top: Buffer  # the largest score of each row
    mass: Buffer  # this lane's part of the sum of weights of each row

    @classmethod
    def make(cls, d: int) -> "_State":
        """Nothing is taken."""
        state = cls(
            q=g.registers(d // mma.K * mma.A_HELD, dtype=mma.DTYPE),
            out=g.registers(held(d)),
            top=g.registers(HALVES),
            mass=g.registers(HALVES),
        )
        _fill(state.out, held(d), 0.0)
        _fill(state.top, HALVES, MASKED)
        _fill(state.mass, HALVES, 0.0)
        return state


@dataclass(frozen=True, slots=True)
class _Work:
    """The steps of one thread."""

    w: Warps
    rows: Rows
    thread: Expr
    lane: Expr
    state: _State

    @property
    def _first(self) -> Expr:
        """Row of the tile where the warp's begin."""
        return self.thread // g.SUBGROUP * mma.M

    @property
    def _rows(self) -> list[Expr]:
        """The lane's rows of the tile."""
        return [self._first + mma.row_of(self.lane) + half * mma.M // 2 for half in range(HALVES)]

    def _copy(self, rows: int, place_of: PlaceOf, panels: Buffer, start: int) -> None:
        """Begin to copy rows to shared memory."""
        w = self.w
        with g.each_vector(rows * w.d, self.thread, w.threads, PIECE) as i:
            row, column = T.bind(i // w.d), T.bind(i % w.d)
            async_copy.copy(place_of(row, column), panels, start + row * w.pitch + column)

    def bring_queries(self, q: Buffer, panels: Buffer) -> None:
        """The tile's queries to where values will be."""

        def place_of(row: Expr, column: Expr) -> g.Place:
            return q, (*self.rows.at(row), column)

        self._copy(self.w.rows, place_of, panels, self.w.panel)
        async_copy.end_group()

    def take_queries(self, panels: Buffer) -> None:
        """The warp's queries to registers, once they are there; keys may still be on their way."""
        w = self.w
        async_copy.wait(1)
        with g.unrolled_later(w.d // mma.K) as k:
            at = w.panel + self._first * w.pitch + k * mma.K
            mma.load_a(self.lane, self.state.q, k * mma.A_HELD, panels, at, w.pitch)

    def bring(self, side: int, base: Expr, panels: Buffer) -> None:
        """A tile of keys or values from token `base` on."""

        def place_of(row: Expr, column: Expr) -> g.Place:
            return self.rows.key(side, base + tirx.Cast("int32", row), column)

        self._copy(KEYS, place_of, panels, side * self.w.panel)

    def score(self, panels: Buffer) -> Buffer:
        """q kᵀ: a c for each 8 keys."""
        w, scores = self.w, g.registers(held(KEYS))
        _fill(scores, held(KEYS), 0.0)
        with g.unrolled_later(w.d // mma.K) as k, g.unrolled_later(KEYS // PAIR) as pair:
            b = g.registers(2 * mma.B_HELD, dtype=mma.DTYPE)
            mma.load_pair(self.lane, b, panels, pair * PAIR * w.pitch + k * mma.K, w.pitch)
            _multiply_pair(scores, pair, (self.state.q, k), b)
        return scores

    def add_up(self, weights: Buffer, panels: Buffer) -> None:
        """out += weights · values."""
        w = self.w
        with g.unrolled_later(KEYS // mma.K) as k, g.unrolled_later(w.d // PAIR) as pair:
            b = g.registers(2 * mma.B_HELD, dtype=mma.DTYPE)
            at = w.panel + k * mma.K * w.pitch + pair * PAIR
            mma.load_pair_transposed(self.lane, b, panels, at, w.pitch)
            _multiply_pair(self.state.out, pair, (weights, k), b)

    def mask(self, scores: Buffer, base: Expr) -> None:
        """Keys that a row must not see, if there are such for any row."""
        least = self.rows.limit(0)
        column = T.bind(tirx.Cast("int32", mma.column_of(self.lane)))
        with T.If(base + KEYS > least), T.Then():
            for half, row in enumerate(self._rows):
                limit = T.bind(self.rows.limit(row) - base)
                with _each_pair(KEYS, half) as (first, at):
                    for i in range(2):
                        seen = first + column + i < limit
                        masked = tirx.Select(seen, scores[at + i], v.const(MASKED))
                        v.put(masked, scores, at + i)

    def soften(self, scores: Buffer, scale: Expr) -> Buffer:
        """Weights of the keys, rounded; top, mass and output of each row follow."""
        state, weights = self.state, g.registers(held(KEYS), dtype=mma.DTYPE)
        for half in range(HALVES):
            before = T.bind(state.top[half])
            with _each_pair(KEYS, half) as (_, at):
                larger = tirx.max(scores[at], scores[at + 1])
                v.put(tirx.max(state.top[half], larger), state.top, half)
            top = mma.over_row(state.top[half], tirx.max)
            v.put(top, state.top, half)
            none_seen = top < v.const(MASKED / 2)  # all weights would be 1
            shift = T.bind(tirx.Select(none_seen, v.const(0.0), top * scale))
            factor = T.bind(tirx.exp2(before * scale - shift))
            v.put(state.mass[half] * factor, state.mass, half)
            with _each_pair(self.w.d, half) as (_, at):
                pair = v.load(state.out, at, lanes=2)
                v.store(pair * v.splat(factor, 2), state.out, at, lanes=2)
            with _each_pair(KEYS, half) as (_, at):
                for i in range(2):  # one by one, or TVM makes `weights` a buffer of pairs
                    weight = T.bind(tirx.exp2(scores[at + i] * scale - shift))
                    v.put(state.mass[half] + weight, state.mass, half)
                    g.store_as(weight, weights, at + i, lanes=1)
        return weights

    def finish(self, o: Buffer, lse: Buffer, scale: Expr) -> None:
        """Divide by what each row weighs, and write."""
        state = self.state
        for half, row in enumerate(self._rows):
            mass = mma.over_row(state.mass[half], add)
            some = T.bind(mass > v.const(0.0))
            inverse = T.bind(v.const(1.0) / tirx.Select(some, mass, v.const(1.0)))
            with T.If(self.rows.is_real(row)), T.Then():
                at = self.rows.at(row)
                with T.If(self.lane % mma.QUAD == 0), T.Then():
                    sum_of_powers = state.top[half] * scale + tirx.log2(mass)
                    v.put(tirx.Select(some, sum_of_powers, v.const(MASKED)), lse, *at)
                with _each_pair(self.w.d, half) as (first, register):
                    pair = v.load(state.out, register, lanes=2) * v.splat(inverse, 2)
                    g.store_as(pair, o, *at, first + mma.column_of(self.lane), lanes=2)


def held(columns: int) -> int:
    """Elements of c, 16 rows by so many columns, that a lane holds."""
    return columns // mma.N * mma.C_HELD


def _multiply_pair(c: Buffer, pair: Expr, a: tuple[Buffer, Expr], b: Buffer) -> None:
    """Two b by the a of that number, into the pair of c of that number."""
    registers, number = a
    for i in range(2):
        at = (pair * 2 + i) * mma.C_HELD
        mma.multiply(c, at, registers, number * mma.A_HELD, b, i * mma.B_HELD)


@contextmanager
def _each_pair(columns: int, half: int) -> Iterator[tuple[Expr, Expr]]:
    """A row of c, two columns at a time: (the first that lane 0 holds, register)."""
    with g.unrolled_later(columns // mma.N) as i:
        yield i * mma.N, i * mma.C_HELD + half * 2


def _fill(registers: Buffer, count: int, value: float) -> None:
    with g.unrolled_later(count) as i:
        v.put(v.const(value), registers, i)
