"""Attention of one token of each sequence over TVM's paged KV cache.

A block takes a key head and all query heads that share it, so that a key or value is read
once. Its threads form teams, as many as there are tokens' rows to read side by side: a thread
of a team holds `LANES` columns of every query and output. The teams walk the sequence together,
a tile of some tokens each at a time, and each keeps its own running softmax (FlashAttention,
Dao et al. 2022, algorithm 1), in powers of two; they are joined at the end.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_pages import Pages
from mlc_compile.schedule.kernels.gpu.attention_tiling import LOG2_E, MASKED
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

THREADS: Final = 256
BLOCKS: Final = 2  # on a multiprocessor
MOST_TOKENS: Final = 8  # of a team in a tile: their keys and values wait in registers together
MOST_SCORES: Final = 32  # of a thread in a tile, in registers too


@dataclass(frozen=True, slots=True)
class Tiling:
    """`teams` of `columns` threads; a team takes `tokens` a tile, for each of `heads` queries."""

    d: int
    heads: int
    lanes: int
    teams: int
    tokens: int

    @property
    def columns(self) -> int:
        return self.d // self.lanes

    @property
    def threads(self) -> int:
        return self.teams * self.columns

    @property
    def rows(self) -> int:
        """Scores of a tile."""
        return self.teams * self.tokens * self.heads

    @property
    def stride(self) -> int:
        """Floats of a score's parts; odd where columns are even, so that banks differ."""
        return self.columns + 1

    @property
    def scratch(self) -> int:
        """Floats of the parts of a tile's scores, and later of a head's outputs of all teams."""
        return max(self.rows * self.stride, self.teams * self.d)

    @property
    def shared_bytes(self) -> int:
        """What a block needs."""
        return 4 * (self.scratch + self.rows + 2 * self.teams * self.heads)

    @classmethod
    def of(cls, a: Attention, page: int, device: Device) -> "Tiling":
        """The most tokens a tile that registers and shared memory hold."""
        heads, lanes = a.h_q // a.h_kv, g.lanes_for(a.d)
        teams = max(1, min(THREADS, device.threads) // (a.d // lanes))
        counts = [n for n in (MOST_TOKENS, 4, 2) if page % n == 0 and n * heads <= MOST_SCORES]
        tilings = [cls(a.d, heads, lanes, teams, n) for n in (*counts, 1)]
        return next(t for t in tilings if t.shared_bytes <= device.shared_bytes or t.tokens == 1)


def decode(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """q[b, h_q, d] over the pages -> o[b, h_q, d], lse f32[b, h_q], in powers of two.

    The signature is that of the builtin; what only RoPE at this late point, which our caches
    never ask for, would need is not read.
    """
    tiling = Tiling.of(a, page, device)
    b = v.size("b")
    with v.kernel() as builder:
        q = v.argument("q", (b, a.h_q, a.d), dtype)
        pages = Pages.declare(a, dtype, page, b)
        g.view("k_rope_offset", (b,), "int32")
        g.view("q_rope_position", (b,), "int32")
        o = v.argument("o", (b, a.h_q, a.d), dtype)
        lse = v.argument("lse", (b, a.h_q))
        g.number("rotary_mode", "int32")
        g.number("rope_scale", v.F32)
        g.number("rope_theta", v.F32)
        scale = g.number("scale", v.F32)
        with g.each_block(b * a.h_kv, device, threads=tiling.threads) as (block, thread):
            task = _Task(tiling, pages, block // a.h_kv, block % a.h_kv, thread)
            with g.resident(BLOCKS):
                task.run(q, scale, o, lse)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _State:
    """Running softmax of a team's thread, and the memory that the block shares."""

    top: Buffer  # the largest score of each head
    mass: Buffer  # the sum of weights of each head
    out: Buffer  # LANES columns of each head, unnormalized
    scratch: Buffer
    scores: Buffer
    tops: Buffer
    masses: Buffer

    @classmethod
    def make(cls, t: Tiling) -> "_State":
        state = cls(
            top=g.registers(t.heads),
            mass=g.registers(t.heads),
            out=g.registers(t.heads * t.lanes),
            scratch=g.shared(t.scratch),
            scores=g.shared(t.rows),
            tops=g.shared(t.teams * t.heads),
            masses=g.shared(t.teams * t.heads),
        )
        for h in range(t.heads):
            v.put(v.const(MASKED), state.top, h)
            v.put(v.const(0.0), state.mass, h)
        for i in range(t.heads * t.lanes):
            v.put(v.const(0.0), state.out, i)
        return state


@dataclass(frozen=True, slots=True)
class _Task:
    """What one thread does for one key head of one sequence."""

    t: Tiling
    pages: Pages
    sequence: Expr
    head: Expr
    thread: Expr

    @property
    def team(self) -> Expr:
        return self.thread // self.t.columns

    @property
    def column(self) -> Expr:
        return self.thread % self.t.columns

    def run(self, q: Buffer, scale: Expr, o: Buffer, lse: Buffer) -> None:
        """All of it."""
        state, queries = _State.make(self.t), self.queries(q, scale)
        length = T.bind(self.pages.length(self.sequence))
        with T.serial(0, g.blocks_of(length, self.t.teams * self.t.tokens)) as tile:
            self.fold(state, queries, tile, length)
        self.finish(state, o, lse)

    def queries(self, q: Buffer, scale: Expr) -> list[list[Expr]]:
        """This thread's columns of each query, scaled for scores in powers of two."""
        factor = T.bind(scale * v.const(LOG2_E))
        found = []
        for h in range(self.t.heads):
            at = (self.sequence, self.head * self.t.heads + h, self.column * self.t.lanes)
            vector = g.load_f32(q, *at, lanes=self.t.lanes)
            found.append([T.bind(x * factor) for x in g.elements(vector, self.t.lanes)])
        return found

    def fold(self, state: _State, queries: list[list[Expr]], tile: Expr, length: Expr) -> None:
        """Take a tile's tokens into the state."""
        t = self.t
        first = T.bind((tile * t.teams + self.team) * t.tokens)
        keys, values = self._load(first, length)
        for i, key in enumerate(keys):
            for h, query in enumerate(queries):
                row = (self.team * t.tokens + i) * t.heads + h
                part = reduce(add, [x * y for x, y in zip(query, key, strict=True)])
                v.put(part, state.scratch, row * t.stride + self.column)
        g.barrier()
        self._score(state, tile, length)
        g.barrier()
        for h in range(t.heads):
            self._soften(state, h, values)

    def _load(self, first: Expr, length: Expr) -> tuple[list[list[Expr]], list[list[Expr]]]:
        """Keys and values of the team's tokens; past the end the last token's, unused."""
        t = self.t
        number = T.bind(tirx.min(first, length - 1))
        page = T.bind(self.pages.page_of(self.sequence, number))
        start = T.bind(number // self.pages.size * self.pages.size)
        slots = [T.bind(tirx.min(first + i, length - 1) - start) for i in range(t.tokens)]
        # `first` divides by `tokens`, which divides a page: all slots are of the one page.
        found = []
        for side in range(2):
            at = [(page, side, self.head, slot, self.column * t.lanes) for slot in slots]
            vectors = [g.load_f32(self.pages.data, *i, lanes=t.lanes) for i in at]
            found.append([g.elements(x, t.lanes) for x in vectors])
        return found[0], found[1]

    def _score(self, state: _State, tile: Expr, length: Expr) -> None:
        """Add up the parts of each score, a thread a score."""
        t = self.t
        with g.each_vector(t.rows, self.thread, t.threads, 1) as row:
            total = g.registers(1)
            v.put(v.const(0.0), total, 0)
            with T.serial(0, t.columns) as c:
                v.put(total[0] + state.scratch[row * t.stride + c], total, 0)
            token = tile * (t.teams * t.tokens) + row // t.heads
            v.put(tirx.Select(token < length, total[0], v.const(MASKED)), state.scores, row)

    def _soften(self, state: _State, h: int, values: list[list[Expr]]) -> None:
        """Weigh the values of the team's tokens for one head."""
        t = self.t
        rows = [(self.team * t.tokens + i) * t.heads + h for i in range(t.tokens)]
        scores = [T.bind(state.scores[row]) for row in rows]
        top = T.bind(reduce(tirx.max, [state.top[h], *scores]))
        factor = T.bind(tirx.exp2(state.top[h] - top))
        weights = [T.bind(tirx.exp2(score - top)) for score in scores]
        v.put(top, state.top, h)
        v.put(state.mass[h] * factor + reduce(add, weights), state.mass, h)
        for lane in range(t.lanes):
            fresh = reduce(add, [w * x[lane] for w, x in zip(weights, values, strict=True)])
            i = h * t.lanes + lane
            v.put(state.out[i] * factor + fresh, state.out, i)

    def finish(self, state: _State, o: Buffer, lse: Buffer) -> None:
        """Join the teams, a head after another."""
        t = self.t
        g.barrier()  # TVM may give `tops` the memory of `scores`, which is dead by now
        with T.If(self.column == 0), T.Then():
            for h in range(t.heads):
                v.put(state.top[h], state.tops, self.team * t.heads + h)
                v.put(state.mass[h], state.masses, self.team * t.heads + h)
        g.barrier()
        for h in range(t.heads):
            tops = [T.bind(state.tops[i * t.heads + h]) for i in range(t.teams)]
            top = T.bind(reduce(tirx.max, tops))
            masses = [state.masses[i * t.heads + h] for i in range(t.teams)]
            shares = [x * tirx.exp2(y - top) for x, y in zip(masses, tops, strict=True)]
            mass = T.bind(reduce(add, shares))
            self._join(state, h, top, mass, o)
            at = (self.sequence, self.head * t.heads + h)
            with T.If(self.thread == 0), T.Then():
                v.put(top + tirx.log2(_positive(mass)), lse, *at)

    def _join(self, state: _State, h: int, top: Expr, mass: Expr, o: Buffer) -> None:
        """Write one head of the output."""
        t = self.t
        factor = T.bind(tirx.exp2(state.top[h] - top))
        for lane in range(t.lanes):
            at = self.team * t.d + self.column * t.lanes + lane
            v.put(state.out[h * t.lanes + lane] * factor, state.scratch, at)
        g.barrier()
        inverse = T.bind(v.const(1.0) / _positive(mass))
        with g.each_vector(t.d, self.thread, t.threads, 1) as i:
            total = reduce(add, [state.scratch[team * t.d + i] for team in range(t.teams)])
            at = (self.sequence, self.head * t.heads + h)
            g.store_as(total * inverse, o, *at, i, lanes=1)
        g.barrier()


def _positive(mass: Expr) -> Expr:
    """`mass`, or 1 where there was no token at all: the output then is 0, and so is its weight."""
    return tirx.Select(mass > v.const(0.0), mass, v.const(1.0))
