"""Attention of one token of each sequence over TVM's paged KV cache.

A block takes a key head and all query heads that share it, so that a key or value is read
once, and a part of the context. Its teams of threads walk that together, a tile of some tokens
each at a time: a thread of a team holds `lanes` columns of every query and output.
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
from mlc_compile.schedule.kernels.gpu.attention_parts import Parts
from mlc_compile.schedule.kernels.gpu.attention_teams import State, Teams
from mlc_compile.schedule.kernels.gpu.attention_tiling import LOG2_E, MASKED
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

BLOCKS: Final = 2  # on a multiprocessor
MOST_TOKENS: Final = 8  # of a team in a tile: their keys and values wait in registers together
MOST_SCORES: Final = 32  # of a thread in a tile, in registers too


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a block does at a time: each of its teams takes `tokens`."""

    teams: Teams
    tokens: int

    @property
    def span(self) -> int:
        """Tokens of a tile."""
        return self.teams.count * self.tokens

    @property
    def rows(self) -> int:
        """Scores of a tile."""
        return self.span * self.teams.heads

    @property
    def stride(self) -> int:
        """Floats of a score's summands; odd where columns are even, so that banks differ."""
        return self.teams.columns + 1

    @property
    def scratch(self) -> int:
        """Floats of the summands of a tile's scores, and later of what teams join."""
        return max(self.rows * self.stride, self.teams.scratch)

    @property
    def shared_bytes(self) -> int:
        """What a block needs."""
        return 4 * (self.scratch + self.rows) + self.teams.shared_bytes

    @classmethod
    def of(cls, a: Attention, page: int, device: Device) -> "Tiling":
        """The most tokens a tile that registers and shared memory hold."""
        heads = a.h_q // a.h_kv
        teams = Teams.of(a.d, heads, device)
        counts = [n for n in (MOST_TOKENS, 4, 2) if page % n == 0 and n * heads <= MOST_SCORES]
        tilings = [cls(teams, n) for n in (*counts, 1)]
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
        parts = Parts.declare(a, most_parts(a, device), b, pages)
        blocks = b * a.h_kv
        # Without a sequence TVM launches one block all the same, and it must stay away.
        grid = tirx.max(blocks, 1), parts.count
        with g.launch(*grid, threads=tiling.teams.threads) as (block, part, thread):
            state = State.make(tiling.teams, thread)
            task = _Task(tiling, pages, state, block // a.h_kv, block % a.h_kv, part)
            with g.resident(BLOCKS), T.If(block < blocks), T.Then():
                task.run(q, scale, parts, o, lse)
        parts.join(o, lse, b, device)
    return builder.get()


def most_parts(a: Attention, device: Device) -> int:
    """Of one sequence: blocks for all cores."""
    return -(-BLOCKS * device.cores // a.h_kv)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one thread does for one key head and one part of one sequence."""

    t: Tiling
    pages: Pages
    state: State
    sequence: Expr
    head: Expr
    part: Expr

    def run(self, q: Buffer, scale: Expr, parts: Parts, o: Buffer, lse: Buffer) -> None:
        """All of it; of a part behind the sequence's end, whose mass is 0, nothing."""
        t, heads = self.t, self.t.teams.heads
        scratch, scores = g.shared(t.scratch), g.shared(t.rows)
        queries = self.queries(q, scale)
        length = T.bind(self.pages.length(self.sequence))
        tiles = T.bind(g.blocks_of(length, t.span))
        each = T.bind(g.blocks_of(tiles, parts.count))
        first = T.bind(tirx.min(self.part * each, tiles))
        with T.serial(0, tirx.min(each, tiles - first)) as i:
            self.fold(scratch, scores, queries, T.bind(first + i), length)

        def write(h: int, column: Expr, value: Expr) -> None:
            parts.put(value, o, (self.sequence, self.head * heads + h, column), self.part)

        def write_mass(h: int, value: Expr) -> None:
            parts.put(value, lse, (self.sequence, self.head * heads + h), self.part)

        self.state.finish(scratch, write, write_mass)

    def queries(self, q: Buffer, scale: Expr) -> list[list[Expr]]:
        """This thread's columns of each query, scaled for scores in powers of two."""
        t, factor = self.t.teams, T.bind(scale * v.const(LOG2_E))
        found = []
        for h in range(t.heads):
            at = (self.sequence, self.head * t.heads + h, self.state.column * t.lanes)
            vector = g.load_f32(q, *at, lanes=t.lanes)
            found.append([T.bind(x * factor) for x in g.elements(vector, t.lanes)])
        return found

    def fold(
        self, scratch: Buffer, scores: Buffer, queries: list[list[Expr]], tile: Expr, length: Expr
    ) -> None:
        """Take a tile's tokens into the state."""
        t, heads = self.t, self.t.teams.heads
        keys, values = self._load(tile, length)
        for i, key in enumerate(keys):
            for h, query in enumerate(queries):
                part = reduce(add, [x * y for x, y in zip(query, key, strict=True)])
                v.put(part, scratch, self._row(i, h) * t.stride + self.state.column)
        g.barrier()
        self._score(scratch, scores, tile, length)
        g.barrier()
        for h in range(heads):
            found = [T.bind(scores[self._row(i, h)]) for i in range(t.tokens)]
            self.state.take(h, found, values)

    def _row(self, i: int, h: int) -> Expr:
        """The score of the team's token i with query h."""
        return (self.state.team * self.t.tokens + i) * self.t.teams.heads + h

    def _load(self, tile: Expr, length: Expr) -> tuple[list[list[Expr]], list[list[Expr]]]:
        """Keys and values of the team's tokens; past the end the last token's, unused."""
        t, lanes = self.t, self.t.teams.lanes
        first = T.bind((tile * t.teams.count + self.state.team) * t.tokens)
        number = T.bind(tirx.min(first, length - 1))
        page = T.bind(self.pages.page_of(self.sequence, number))
        start = T.bind(number // self.pages.size * self.pages.size)
        slots = [T.bind(tirx.min(first + i, length - 1) - start) for i in range(t.tokens)]
        # `first` divides by `tokens`, which divides a page: all slots are of the one page.
        found = []
        for side in range(2):
            at = [(page, side, self.head, slot, self.state.column * lanes) for slot in slots]
            vectors = [g.load_f32(self.pages.data, *i, lanes=lanes) for i in at]
            found.append([g.elements(x, lanes) for x in vectors])
        return found[0], found[1]

    def _score(self, scratch: Buffer, scores: Buffer, tile: Expr, length: Expr) -> None:
        """Add up the summands of each score, a thread a score."""
        t, heads = self.t, self.t.teams.heads
        with g.each_vector(t.rows, self.state.thread, t.teams.threads, 1) as row:
            total = g.registers(1)
            v.put(v.const(0.0), total, 0)
            with T.serial(0, t.teams.columns) as c:
                v.put(total[0] + scratch[row * t.stride + c], total, 0)
            there = tile * t.span + row // heads < length
            v.put(tirx.Select(there, total[0], v.const(MASKED)), scores, row)
