"""Attention over the flat KV cache of the CPU: append, then one pass with a running softmax.

Shapes: m tokens of this call, h_q query heads, h_kv key heads, d head size, P pages of
`page` tokens.

    qkv      [1, m, (h_q + 2 h_kv) d]
    k_pages  [layers, P, h_kv, d, page]   transposed: a score of `page` tokens is one
                                          multiply-add of a vector a component of q
    v_pages  [layers, P, h_kv, page, d]
    table    i32[P], length i32[1]        logical -> physical page; tokens already there
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.norm import normalize
from mlc_compile.schedule.kernels.rope import rotate
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

MASKED = -3.0e38  # a score that exp() turns into nothing, without an infinity to subtract


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache parameters of a kernel, as buffers."""

    k: Buffer
    v: Buffer
    table: Buffer
    length: Buffer

    @classmethod
    def declare(cls, kv: FlatKV) -> "Cache":
        pages = v.size("pages")
        return cls(
            k=v.argument(
                "k_pages", (kv.layers, pages, kv.kv_heads, kv.head_dim, kv.page), kv.dtype
            ),
            v=v.argument(
                "v_pages", (kv.layers, pages, kv.kv_heads, kv.page, kv.head_dim), kv.dtype
            ),
            table=v.argument("table", (pages,), "int32"),
            length=v.argument("length", (1,), "int32"),
        )


def append(a: Attention, kv: FlatKV, rows: int | None) -> tirx.PrimFunc:
    """qkv, gamma_q[d], gamma_k[d], angles[m, d], cache, layer -> q[1, m, h_q, d].

    Normalizes and rotates q and k per head, and writes k and v, rounded, into the pages. A
    task takes one key head of ROWS tokens, so that the lines of its transposed page, which
    every token writes, stay in the L1 cache.
    """
    m = v.size("m") if rows is None else rows
    per_key = a.h_q // a.h_kv
    with v.kernel() as builder:
        inputs = _Inputs.declare(a, m)
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        q = v.argument("q", (1, m, a.h_q, a.d))
        with v.over((m + (ROWS - 1)) // ROWS * a.h_kv, parallel=rows is None) as task:
            head, first = task % a.h_kv, task // a.h_kv * ROWS
            with T.serial(0, tirx.min(m - first, ROWS)) as t:
                inputs.append(a, kv, first + t, head, cache, layer)
                with T.serial(0, per_key) as g:
                    h = head * per_key + g
                    inputs.query(a, first + t, h, q, (0, first + t, h))
    return builder.get()


def step(a: Attention, kv: FlatKV, target: Target, tile: "Tile | None" = None) -> tirx.PrimFunc:
    """`append` and `attend` of one token in one launch: qkv .. layer -> o[1, 1, h_q d].

    A task owns a key head: it alone writes that head's key and value, so no thread waits
    for another.
    """
    per_key = a.h_q // a.h_kv
    tile = tile or Tile.of(a, target, 1)
    with v.kernel() as builder:
        inputs = _Inputs.declare(a, 1)
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        o = v.argument("o", (1, 1, a.h_q * a.d))
        with T.parallel(0, a.h_kv) as head:
            q = v.workspace((per_key, a.d))
            state = _State.make(per_key, tile.members, a, kv)
            inputs.append(a, kv, 0, head, cache, layer)
            with T.serial(0, per_key) as g:
                inputs.query(a, 0, head * per_key + g, q, (g,))
                state.reset(g)
            with T.serial(0, cache.length[0] // kv.page + 1) as p:
                page = _Page(cache, kv, layer, p, head)
                for group in range(0, per_key, tile.heads):
                    heads = range(group, group + tile.heads)
                    members = [_Member((g,), g, cache.length[0]) for g in heads]
                    page.fold(q, state, members, tile)
            with T.serial(0, per_key) as g:
                state.finish(g, o, (0, 0), (head * per_key + g) * a.d)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What attention reads of this call: qkv[1, m, ..], the norms' gammas, angles[m, d]."""

    qkv: Buffer
    gamma_q: Buffer
    gamma_k: Buffer
    angles: Buffer

    @classmethod
    def declare(cls, a: Attention, m: Index) -> "_Inputs":
        return cls(
            qkv=v.argument("qkv", (1, m, (a.h_q + 2 * a.h_kv) * a.d)),
            gamma_q=v.argument("gamma_q", (a.d,)),
            gamma_k=v.argument("gamma_k", (a.d,)),
            angles=v.argument("angles", (m, a.d)),
        )

    def query(self, a: Attention, i: Index, h: Index, q: Buffer, to: tuple[Index, ...]) -> None:
        """Normalize and rotate query head `h` of token `i` into `q[to]`."""
        normalize((self.qkv, (0, i)), self.gamma_q, (q, to), a.d, a.eps, start=h * a.d)
        rotate(q, to, self.angles, i, a.d)

    def append(
        self, a: Attention, kv: FlatKV, i: Index, h: Index, cache: Cache, layer: Index
    ) -> None:
        """Put key head `h` of token `i`, normalized and rotated, and its value into their page."""
        key = v.workspace((1, a.d))
        source = (self.qkv, (0, i))
        normalize(source, self.gamma_k, (key, (0,)), a.d, a.eps, start=(a.h_q + h) * a.d)
        rotate(key, (0,), self.angles, i, a.d)
        position = cache.length[0] + tirx.Cast("int32", i)
        page, slot = cache.table[position // kv.page], position % kv.page
        lanes = v.lanes_for(a.d)
        column = (a.h_q + a.h_kv + h) * a.d
        with T.serial(0, a.d // lanes) as j:
            held = v.local(1, lanes, kv.dtype)
            head = v.load(key, 0, j * lanes, lanes=lanes)
            v.store(_narrow(head, kv, lanes), held, 0, 0, lanes=lanes)
            for lane in range(lanes):  # the key's page is transposed
                v.put(held[0, lane], cache.k, layer, page, h, j * lanes + lane, slot)
            value = v.load(self.qkv, 0, i, column + j * lanes, lanes=lanes)
            value = _narrow(value, kv, lanes)
            v.store(value, cache.v, layer, page, h, slot, j * lanes, lanes=lanes)


@dataclass(frozen=True, slots=True)
class Tile:
    """Work of one task: `rows` tokens of one key head.

    `tokens` of them, `heads` query heads each, share every key and value they load.
    """

    rows: int
    tokens: int
    heads: int
    vectors: int  # of the output a pass over the values holds, per head
    stacked: int = 0  # 1: what a pass sums lies on the stack however much it is

    @property
    def members(self) -> int:
        """Queries in one pass over a page."""
        return self.tokens * self.heads

    @classmethod
    def of(cls, a: Attention, target: Target, rows: int | None) -> "Tile":
        """Four queries a pass where the registers hold their scores and outputs, else two."""
        most = 4 if target.vector_registers * target.f32_lanes >= 32 * LANES else 2
        per_key = a.h_q // a.h_kv
        heads = next(h for h in (4, 3, 2, 1) if h <= most and per_key % h == 0)
        chunks = a.d // v.lanes_for(a.d)
        vectors = next(n for n in (4, 3, 2, 1) if chunks % n == 0)
        tokens = 1 if rows == 1 else max(1, most // heads)
        return cls(rows=1 if rows == 1 else ROWS, tokens=tokens, heads=heads, vectors=vectors)

    @classmethod
    def space(cls, a: Attention, target: Target, rows: int | None) -> "Space[Tile]":
        """Heads, vectors and passes come out even; one row has no other rows to share with."""
        per_key, chunks = a.h_q // a.h_kv, a.d // v.lanes_for(a.d)

        def valid(tile: Tile) -> bool:
            uneven = per_key % tile.heads or chunks % tile.vectors or tile.rows % tile.tokens
            return not uneven and tile.members <= MEMBERS

        of_one = ("heads", "vectors", "stacked")
        knobs = TILES if rows is None else {name: TILES[name] for name in of_one}
        return Space(cls.of(a, target, rows), knobs, valid)


MEMBERS: Final = 8  # more queries than that spill everywhere
TILES: Final = {
    "rows": (4, 8, 16, 32, 64),
    "tokens": (1, 2, 3, 4, 8),
    "heads": (1, 2, 3, 4, 5, 8),
    "vectors": (1, 2, 3, 4, 8),
    "stacked": (0, 1),
}


def attend(
    a: Attention, kv: FlatKV, target: Target, rows: int | None, tile: Tile | None = None
) -> tirx.PrimFunc:
    """q[1, m, h_q, d], cache, layer -> o[1, m, h_q d]: causal, grouped-query.

    A task keeps the running maximum, sum and output of its rows (FlashAttention, Dao et
    al. 2022, algorithm 1) while it walks the pages once; the scores exist a page at a time,
    and a page is read from memory once for all query heads of its key head.
    """
    m = v.size("m") if rows is None else rows
    per_key = a.h_q // a.h_kv
    tile = tile or Tile.of(a, target, rows)
    with v.kernel() as builder:
        q = v.argument("q", (1, m, a.h_q, a.d))
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        o = v.argument("o", (1, m, a.h_q * a.d))
        steps = (m + (tile.rows - 1)) // tile.rows
        with T.parallel(0, steps * a.h_kv) as task:
            head, first = task % a.h_kv, task // a.h_kv * tile.rows
            last = tirx.min(first + tile.rows, m)
            state = _State.make(tile.rows * per_key, tile.members, a, kv)
            with T.serial(0, tile.rows * per_key) as r:
                state.reset(r)
            pages = (cache.length[0] + tirx.Cast("int32", last) - 1) // kv.page + 1
            passes = (last - first + (tile.tokens - 1)) // tile.tokens
            with T.serial(0, pages) as p, T.serial(0, passes) as i:
                page = _Page(cache, kv, layer, p, head)
                for group in range(0, per_key, tile.heads):
                    members = []
                    for t in range(tile.tokens):
                        # Past the last token a spare row of the state repeats that token.
                        row = tirx.min(first + i * tile.tokens + t, last - 1)
                        position = cache.length[0] + tirx.Cast("int32", row)
                        for g in range(group, group + tile.heads):
                            at = (0, row, head * per_key + g)
                            state_row = (i * tile.tokens + t) * per_key + g
                            members.append(_Member(at, state_row, position))
                    page.fold(q, state, members, tile)
            with T.serial(0, last - first) as i, T.serial(0, per_key) as g:
                state.finish(i * per_key + g, o, (0, first + i), (head * per_key + g) * a.d)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Member:
    """One query of a pass over a page."""

    q: tuple[Index, ...]  # where it is
    state: Index  # which row of the state is its
    position: Expr  # of its token


@dataclass(frozen=True, slots=True)
class _State:
    """Running softmax: `top` the largest score, `mass` the sum of weights, `out` unnormalized.

    `weights` are those of one pass: a row for each of its members, a column a token.
    """

    top: Buffer
    mass: Buffer
    out: Buffer
    weights: Buffer
    d: int

    @classmethod
    def make(cls, rows: int, members: int, a: Attention, kv: FlatKV) -> "_State":
        return cls(
            top=v.workspace((rows,)),
            mass=v.workspace((rows,)),
            out=v.workspace((rows, a.d)),
            weights=v.workspace((members, kv.page)),
            d=a.d,
        )

    def reset(self, row: Index) -> None:
        lanes = v.lanes_for(self.d)
        v.put(v.const(MASKED), self.top, row)
        v.put(v.const(0.0), self.mass, row)
        with T.serial(0, self.d // lanes) as j:
            v.store(v.splat(0.0, lanes), self.out, row, j * lanes, lanes=lanes)

    def scale(self, row: Index, factor: Expr) -> None:
        """Rescale a row of the output."""
        lanes = v.lanes_for(self.d)
        with T.serial(0, self.d // lanes) as j:
            old = v.load(self.out, row, j * lanes, lanes=lanes)
            v.store(old * v.splat(factor, lanes), self.out, row, j * lanes, lanes=lanes)

    def finish(self, row: Index, o: Buffer, at: tuple[Index, ...], start: Index) -> None:
        lanes = v.lanes_for(self.d)
        inverse = v.const(1.0) / self.mass[row]
        with T.serial(0, self.d // lanes) as j:
            value = v.load(self.out, row, j * lanes, lanes=lanes) * v.splat(inverse, lanes)
            v.store(value, o, *at, start + j * lanes, lanes=lanes)


@dataclass(frozen=True, slots=True)
class _Page:
    """Page `number` of a sequence, of one layer and key head."""

    cache: Cache
    kv: FlatKV
    layer: Index
    number: Index
    head: Index

    def __post_init__(self) -> None:
        assert self.kv.page % LANES == 0, "a page's scores are whole vectors"

    def fold(self, q: Buffer, state: _State, members: list[_Member], tile: Tile) -> None:
        """Take the page's keys and values into the state of all members."""
        scores = self._scores(q, members, state.d, tile)
        for g, member in enumerate(members):
            self._soften(scores, state, g, member)
        # Values after the last member's token have no weight, and need not be read.
        seen = tirx.min(members[-1].position + 1 - self.number * self.kv.page, self.kv.page)
        self._weigh_values(state, members, seen, tile)

    @property
    def _chunks(self) -> int:
        """Vectors that hold a score of each token."""
        return self.kv.page // LANES

    def _scores(self, q: Buffer, members: list[_Member], d: int, tile: Tile) -> v.Registers:
        """q . k of each member and token: `_chunks` vectors a member."""
        page, chunks = self.cache.table[self.number], self._chunks
        scores = v.Registers.make(len(members) * chunks, stacked=bool(tile.stacked))
        scores.clear()
        with T.serial(0, d) as j:
            at = (self.layer, page, self.head, j)
            keys = [v.to_f32(v.load(self.cache.k, *at, c * LANES)) for c in range(chunks)]
            for g, member in enumerate(members):
                component = v.splat(q[(*member.q, j)])
                for c, key in enumerate(keys):
                    v.accumulate(*scores[g * chunks + c], key * component)
        return scores

    def _soften(self, scores: v.Registers, state: _State, g: int, member: _Member) -> None:
        """Mask, update the maximum, turn scores into weights and rescale what went before."""
        r, chunks = member.state, self._chunks
        peak = v.local(1)
        v.clear(peak, 1, MASKED)
        for c in range(chunks):
            tokens = tirx.Ramp(self.number * self.kv.page + c * LANES, 1, LANES)
            held = scores[g * chunks + c]
            scaled = v.load(*held, 0) * v.splat(state.d**-0.5)
            visible = tokens <= v.splat_i32(member.position)
            v.store(tirx.Select(visible, scaled, v.splat(MASKED)), *held, 0)
            v.store(tirx.max(v.load(peak, 0, 0), v.load(*held, 0)), peak, 0, 0)
        fresh = v.local(2, 1)  # the new maximum, and the factor for all that went before
        v.put(tirx.max(state.top[r], v.largest(peak, 0)), fresh, 0, 0)
        v.put(_exp1(state.top[r] - fresh[0, 0]), fresh, 1, 0)
        v.put(fresh[0, 0], state.top, r)
        mass = v.local(1)
        v.clear(mass, 1)
        for c in range(chunks):
            weight = v.exp(v.load(*scores[g * chunks + c], 0) - v.splat(fresh[0, 0]))
            v.store(weight, state.weights, g, c * LANES)
            v.accumulate(mass, 0, v.load(state.weights, g, c * LANES))
        v.put(state.mass[r] * fresh[1, 0] + v.total(mass, 0), state.mass, r)
        state.scale(r, fresh[1, 0])

    def _weigh_values(
        self, state: _State, members: list[_Member], tokens: Expr, tile: Tile
    ) -> None:
        """out += weights * values of the first `tokens`, `vectors` of the output at a time."""
        page = self.cache.table[self.number]
        lanes, vectors = v.lanes_for(state.d), tile.vectors
        width = lanes * vectors
        with T.serial(0, state.d // width) as block:
            places = [(g, c) for g in range(len(members)) for c in range(vectors)]
            sums = v.Registers.make(len(places), lanes=lanes, stacked=bool(tile.stacked))

            def column(c: int, block: Index = block) -> Expr:
                return block * width + c * lanes

            for g, c in places:
                old = v.load(state.out, members[g].state, column(c), lanes=lanes)
                v.store(old, *sums[g * vectors + c], 0, lanes=lanes)
            with T.serial(0, tokens) as t:
                at = (self.layer, page, self.head, t)
                values = [
                    v.to_f32(v.load(self.cache.v, *at, column(c), lanes=lanes), lanes)
                    for c in range(vectors)
                ]
                for g, c in places:
                    register = g * vectors + c
                    old = v.load(*sums[register], 0, lanes=lanes)
                    new = old + values[c] * v.splat(state.weights[g, t], lanes)
                    v.store(new, *sums[register], 0, lanes=lanes)
            for g, c in places:
                new = v.load(*sums[g * vectors + c], 0, lanes=lanes)
                v.store(new, state.out, members[g].state, column(c), lanes=lanes)


ROWS = 16  # tokens a task takes in prefill: its state (rows · heads · d floats) stays in L1


def _exp1(x: Expr) -> Expr:
    """exp of one float32, by the vector's polynomial so that both agree."""
    one = v.local(1, 2)
    v.store(v.exp(v.splat(x, 2), 2), one, 0, 0, lanes=2)
    return one[0, 0]


def _narrow(value: Expr, kv: FlatKV, lanes: int) -> Expr:
    """A float32 vector in the cache's type."""
    return value if kv.dtype == v.F32 else tirx.Cast(f"{kv.dtype}x{lanes}", value)
