"""Causal attention of many tokens on tiles of bfloat16: scores and weighted values alike.

A page of 32 tokens is one group of 32 for both products, in pairs as everywhere (see `bf16`):

    scores[16 queries, 16 tokens]  +=  q[16, 16 pairs of d] . keys[16 pairs of d, 16 tokens]
    out[16 queries, 16 of d]       +=  weights[16, 16 pairs of tokens] . values[.., 16 of d]

Rounded to 8 bits are queries, keys, weights and values; sums and the softmax between the
products are float32. A task turns each block of pages into panels once for all its queries.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP
from mlc_compile.ops import Attention, rounded_words
from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.attend import in_turn
from mlc_compile.schedule.kernels.attention.cache import Cache
from mlc_compile.schedule.kernels.attention.state import MASKED, State
from mlc_compile.schedule.kernels.bf16 import PAIRS, pair
from mlc_compile.schedule.kernels.elementary import EXP2_BF16, exp2
from mlc_compile.schedule.kernels.tiles import Block, Place, TileUnit
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.space import Space

SIDE: Final = tiles.ROWS  # queries, tokens or numbers of d of a tile
BOTH: Final = 2  # tiles of queries that are multiplied together
CHUNKS: Final = GROUP // LANES  # vectors, and tiles, of a group of tokens or of d


@dataclass(frozen=True, slots=True)
class Share:
    """How much a task takes: `tokens` of a key head, against `pages` at a time."""

    tokens: int = 128
    pages: int = 8

    @classmethod
    def space(cls) -> "Space[Share]":
        """Any will do."""
        return Space(cls(), SHARES)


SHARES: Final = {"tokens": (32, 64, 128, 256), "pages": (1, 2, 4, 8)}


def attend_tiles(
    a: Attention, kv: FlatKV, unit: TileUnit, share: Share, *, rounded: bool = False
) -> tirx.PrimFunc:
    """q i32[1, m, h_q, d/2], cache, layer -> o[1, m, h_q d]: as `attend`, for any m.

    q is what `append` rounded; if `rounded`, o is pairs i32[1, m, rounded_words(h_q d)]. Heads are
    whole groups, and a page is one.
    """
    assert a.d % GROUP == 0
    assert kv.page == GROUP
    assert share.tokens % (BOTH * SIDE) == 0, "tiles come in pairs, whatever the number of heads"
    m = v.size("m")
    with v.kernel() as builder:
        q = v.argument("q", (1, m, a.h_q, a.d // 2), "int32")
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        width = a.h_q * a.d
        o = (
            v.argument("o", (1, m, rounded_words(width)), "int32")
            if rounded
            else v.argument("o", (1, m, width))
        )
        steps = (m + (share.tokens - 1)) // share.tokens
        with T.parallel(0, steps * a.h_kv) as task:
            first = v.kept(in_turn(task % steps, steps) * share.tokens)
            last = v.kept(tirx.min(first + share.tokens, m))
            queries = _Queries(a, v.kept(task // steps), first, last, cache.length)
            fold = _Fold.begin(queries, cache, layer, unit, share)
            fold.read(q)
            fold.block.configure()
            pages = v.kept(queries.pages(last - 1))
            with T.serial(0, (pages + (share.pages - 1)) // share.pages) as b:
                start = b * share.pages
                fold.unpack(start, pages)
                with T.serial(0, queries.couples) as couple:
                    end = v.kept(queries.pages(queries.token(couple * BOTH + 1, SIDE - 1)))
                    with T.If(start < end), T.Then():
                        fold.take(couple, start, end)
            unit.release()
            fold.finish(o)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Queries:
    """Those of key head `head`, of tokens `first` to before `last` of this call.

    A tile has 16 tokens of one query head; tiles go over the heads, then over the tokens, and
    two neighbors make a couple. Past the last token, rows repeat it, and nobody wants them.
    """

    a: Attention
    head: Expr
    first: Expr
    last: Expr
    length: Buffer  # tokens in the cache before this call

    @property
    def per_key(self) -> int:
        """Query heads that share the key head."""
        return self.a.h_q // self.a.h_kv

    @property
    def couples(self) -> Expr:
        """Of tiles, over all tokens."""
        tiled = (self.last - self.first + (SIDE - 1)) // SIDE * self.per_key
        return (tiled + (BOTH - 1)) // BOTH

    def token(self, tile: Index, row: Index) -> Expr:
        """Of this call."""
        return tirx.min(self.first + tile // self.per_key * SIDE + row, self.last - 1)

    def query_head(self, tile: Index) -> Expr:
        return self.head * self.per_key + tile % self.per_key

    def position(self, token: Expr) -> Expr:
        """int32: in the sequence."""
        return self.length[0] + tirx.Cast("int32", token)

    def pages(self, token: Expr) -> Expr:
        """int32: so many does it see."""
        return self.position(token) // GROUP + 1


@dataclass(frozen=True, slots=True)
class _Fold:
    """A task's queries, all that it knows of them so far, and the pages at hand."""

    queries: _Queries
    cache: Cache
    layer: Index
    share: Share
    block: Block
    q: Buffer  # pairs [tiles, d / 32, 16, 16]: times `scale_of(d)`
    state: State  # row 16 t + r is of tile t
    keys: Buffer  # pairs [pages, 2, d / 32, 16, 16]: of 16 tokens each
    values: Buffer  # pairs [pages, d / 16, 16, 16]
    scores: Buffer  # [32, tokens of the pages]: of one couple
    weights: Buffer  # pairs [2, pages, 16, 16]
    factors: Buffer  # [32]: what a couple multiplies by all that was before

    @classmethod
    def begin(
        cls, queries: _Queries, cache: Cache, layer: Index, unit: TileUnit, share: Share
    ) -> "_Fold":
        """In scratch memory, with nothing read or seen."""
        d, pages, tile = queries.a.d, share.pages, (PAIRS, SIDE)
        count = share.tokens // SIDE * queries.per_key
        return cls(
            queries=queries,
            cache=cache,
            layer=layer,
            share=share,
            block=Block(unit, BOTH, CHUNKS),
            q=v.workspace((count, d // GROUP, *tile), "int32"),
            state=State.make(count * SIDE, d),
            keys=v.workspace((pages, CHUNKS, d // GROUP, *tile), "int32"),
            values=v.workspace((pages, d // SIDE, *tile), "int32"),
            scores=v.workspace((BOTH * SIDE, pages * GROUP)),
            weights=v.workspace((BOTH, pages, *tile), "int32"),
            factors=v.workspace((BOTH * SIDE,)),
        )

    @property
    def _d(self) -> int:
        return self.queries.a.d

    def read(self, q: Buffer) -> None:
        """Take all queries; none has seen anything."""
        with T.serial(0, self.queries.couples * BOTH) as tile, T.serial(0, SIDE) as row:
            self.state.reset(tile * SIDE + row)
            token, head = self.queries.token(tile, row), self.queries.query_head(tile)
            for g in range(self._d // GROUP):
                v.store(v.load(q, 0, token, head, g * PAIRS), self.q, tile, g, row, 0)

    def unpack(self, start: Expr, end: Expr) -> None:
        """Turn pages `start` to before `end`, as many as there is room for, into panels.

        Of tokens that nobody sees the values are zeros: their weight is 0, and memory may hold
        what is not a number.
        """
        latest = v.splat_i32(v.kept(self.queries.position(self.queries.last - 1)))
        with T.serial(0, tirx.min(end - start, self.share.pages)) as p:
            at = self.cache.place(self.layer, start + p, self.queries.head)
            with T.serial(0, self._d // GROUP) as g, T.serial(0, PAIRS) as row:
                for c in range(CHUNKS):
                    low, high = (
                        self.cache.keys(at, g * GROUP + half * PAIRS + row, c) for half in range(2)
                    )
                    v.store(pair(low, high), self.keys, p, c, g, row, 0)
            with T.serial(0, PAIRS) as row:
                tokens = (row, PAIRS + row)
                seen = [v.splat_i32((start + p) * GROUP + token) <= latest for token in tokens]
                for column in range(self._d // SIDE):
                    low, high = (
                        tirx.Select(
                            here,
                            self.cache.values(at, token, column * SIDE, LANES),
                            v.splat(0.0),
                        )
                        for token, here in zip(tokens, seen, strict=True)
                    )
                    v.store(pair(low, high), self.values, p, column, row, 0)

    def take(self, couple: Index, start: Expr, end: Expr) -> None:
        """Let a couple see pages `start` to before `end`, as many as are unpacked."""
        count = v.kept(tirx.min(end - start, self.share.pages))
        self._score(couple, count)
        if self.cache.kv.scaled:
            self._scale(start, count)
        with T.If((start + count) * GROUP - 1 > self._position(couple, 0, 0)), T.Then():
            self._mask(couple, start, count)
        self._raise(couple, count)
        self._soften(couple, start, count)
        self._weigh(couple, count)

    def finish(self, o: Buffer) -> None:
        """Write what the rows of real tokens have become."""
        with T.serial(0, self.queries.couples * BOTH) as tile, T.serial(0, SIDE) as row:
            token = self.queries.first + tile // self.queries.per_key * SIDE + row
            with T.If(token < self.queries.last), T.Then():
                head = self.queries.query_head(tile)
                if o.dtype == v.F32:
                    self.state.finish(tile * SIDE + row, o, (0, token), head * self._d)
                else:
                    self.state.finish_rounded(tile * SIDE + row, o, (0, token), head)

    def _position(self, couple: Index, tile: int, row: Index) -> Expr:
        return self.queries.position(self.queries.token(couple * BOTH + tile, row))

    def _score(self, couple: Index, count: Expr) -> None:
        """scores = q . k"""
        with T.serial(0, count) as p:
            self.block.begin()
            with T.serial(0, self._d // GROUP) as g:
                queries: list[Place] = [(self.q, (couple * BOTH + i, g, 0, 0)) for i in range(BOTH)]
                self.block.add(queries, [(self.keys, (p, c, g, 0, 0)) for c in range(CHUNKS)])
            self.block.end(
                [
                    (self.scores, (i * SIDE, p * GROUP + c * LANES))
                    for i in range(BOTH)
                    for c in range(CHUNKS)
                ]
            )

    def _scale(self, start: Expr, count: Expr) -> None:
        """Multiply scores by what keys that are codes stand for."""
        with T.serial(0, count) as p:
            at = self.cache.place(self.layer, start + p, self.queries.head)
            for c in range(CHUNKS):
                scale = self.cache.key_scales(at, c)
                with T.serial(0, BOTH * SIDE) as row:
                    place = self.scores, row, p * GROUP + c * LANES
                    v.store(v.load(*place) * scale, *place)

    def _mask(self, couple: Index, start: Expr, count: Expr) -> None:
        """Take scores of tokens away that are later than the row's."""
        for i in range(BOTH):
            with T.serial(0, SIDE) as row:
                last = v.kept(self._position(couple, i, row))
                with T.serial(0, count * CHUNKS) as c:
                    at = self.scores, i * SIDE + row, c * LANES
                    visible = tirx.Ramp(start * GROUP + c * LANES, 1, LANES) <= v.splat_i32(last)
                    v.store(tirx.Select(visible, v.load(*at), v.splat(MASKED)), *at)

    def _raise(self, couple: Index, count: Expr) -> None:
        """Take the scores into the maxima; `factors` is what that makes of all before."""
        with T.serial(0, BOTH * SIDE) as row:
            peak = v.local(1)
            v.clear(peak, 1, MASKED)
            with T.serial(0, count * CHUNKS) as c:
                score = v.load(self.scores, row, c * LANES)
                v.store(tirx.max(v.load(peak, 0, 0), score), peak, 0, 0)
            v.put(v.largest(peak, 0), self.factors, row)
        for i in range(BOTH):
            first, top = (couple * BOTH + i) * SIDE, v.local(1)
            old = v.load(self.state.top, first)
            v.store(tirx.max(old, v.load(self.factors, i * SIDE)), top, 0, 0)
            v.store(exp2(old - v.load(top, 0, 0)), self.factors, i * SIDE)
            v.store(v.load(top, 0, 0), self.state.top, first)

    def _soften(self, couple: Index, start: Expr, count: Expr) -> None:
        """Turn scores into weights, and add those up."""
        for i in range(BOTH):
            with T.serial(0, SIDE) as r:
                row, state, mass = (couple * BOTH + i) * SIDE + r, self.state, v.local(1)
                factor, top = v.splat(self.factors[i * SIDE + r]), v.splat(state.top[row])
                v.store(v.load(state.mass, row, 0) * factor, mass, 0, 0)
                with T.serial(0, count) as p:
                    both = v.local(CHUNKS)
                    for c in range(CHUNKS):
                        score = v.load(self.scores, i * SIDE + r, p * GROUP + c * LANES)
                        v.store(exp2(score - top, powers=EXP2_BF16), both, c, 0)
                        v.accumulate(mass, 0, v.load(both, c, 0))
                    low, high = (
                        self._worth(v.load(both, c, 0), start + p, c) for c in range(CHUNKS)
                    )
                    v.store(pair(low, high), self.weights, i, p, r, 0)
                v.store(v.load(mass, 0, 0), state.mass, row, 0)
                for j in range(0, self._d, LANES):
                    v.store(v.load(state.out, row, j) * factor, state.out, row, j)

    def _worth(self, weight: Expr, page: Expr, c: int) -> Expr:
        """Weights of tokens, times what codes of values stand for; of none, nothing."""
        at = self.cache.place(self.layer, page, self.queries.head)
        scale = self.cache.value_scales(at, c)
        if scale is None:
            return weight
        latest = v.splat_i32(self.queries.position(self.queries.last - 1))
        there = tirx.Ramp(page * GROUP + c * LANES, 1, LANES) <= latest
        return weight * tirx.Select(there, scale, v.splat(0.0))

    def _weigh(self, couple: Index, count: Expr) -> None:
        """out += weights . values"""
        with T.serial(0, self._d // GROUP) as strip:
            places: list[Place] = [
                (self.state.out, ((couple * BOTH + i) * SIDE, strip * GROUP + c * SIDE))
                for i in range(BOTH)
                for c in range(CHUNKS)
            ]
            self.block.begin(places)
            with T.serial(0, count) as p:
                weights: list[Place] = [(self.weights, (i, p, 0, 0)) for i in range(BOTH)]
                values = [(self.values, (p, strip * CHUNKS + c, 0, 0)) for c in range(CHUNKS)]
                self.block.add(weights, values)
            self.block.end(places)
