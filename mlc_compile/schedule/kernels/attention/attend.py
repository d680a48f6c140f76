"""Causal attention of any number of tokens."""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.cache import Cache
from mlc_compile.schedule.kernels.attention.state import scale_of
from mlc_compile.schedule.kernels.attention.tile import Tile
from mlc_compile.schedule.kernels.attention.walk import Walk
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Target


def attend(
    a: Attention, kv: FlatKV, target: Target, rows: int | None, tile: Tile | None = None
) -> tirx.PrimFunc:
    """q[1, m, h_q, d], cache, layer -> o[1, m, h_q d]: causal, grouped-query.

    A task keeps the running softmax of its rows while it walks the pages once, a block at a
    time: so a block is read from memory once for all of them. Every pass goes as far as the
    last of its tokens sees.
    """
    m = v.size("m") if rows is None else rows
    tile = tile or Tile.of(a, kv, target, rows)
    with v.kernel() as builder:
        q = v.argument("q", (1, m, a.h_q, a.d))
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        o = v.argument("o", (1, m, a.h_q * a.d))
        steps = (m + (tile.rows - 1)) // tile.rows
        with T.parallel(0, steps * a.h_kv) as task:
            first = v.kept(in_turn(task % steps, steps) * tile.rows)
            last = v.kept(tirx.min(first + tile.rows, m))
            share = _Share(a, tile, v.kept(task // steps), first, last)
            walk = Walk.begin(cache, layer, share.head, tile.rows * share.per_key, tile)
            share.begin(q, walk)
            pages = (cache.length[0] + tirx.Cast("int32", share.last) - 1) // kv.page + 1
            blocks = (pages + (tile.pages - 1)) // tile.pages
            with T.serial(0, blocks) as b, T.serial(0, share.passes) as i:
                positions = [v.kept(cache.length[0] + token) for token in share.tokens(i)]
                start, end = b * tile.pages, v.kept(positions[-1] // kv.page + 1)
                with T.If(start < end), T.Then():
                    walk.fold(i * tile.members, positions, start, end)
            share.finish(walk, o)
    return builder.get()


def in_turn(i: Expr, count: Expr) -> Expr:
    """A permutation of 0 .. count - 1 from both ends: 0, count - 1, 1, count - 2, ..

    Later rows see more, and a thread takes a run of tasks: so all runs cost about the same.
    """
    return tirx.if_then_else(i % 2 == 0, i // 2, count - 1 - i // 2)


@dataclass(frozen=True, slots=True)
class _Share:
    """A task's queries: of key head `head`, tokens `first` to before `last` of this call.

    Member k of pass i has row i · members + k of the walk. Passes go over groups of the query
    heads, then over tokens; past the last token, members repeat it in rows that nobody wants.
    """

    a: Attention
    tile: Tile
    head: Expr
    first: Expr
    last: Expr

    @property
    def per_key(self) -> int:
        """Query heads that share the key head."""
        return self.a.h_q // self.a.h_kv

    @property
    def passes(self) -> Expr:
        """Of members, over all the rows."""
        tokens = self.tile.tokens
        return (self.last - self.first + (tokens - 1)) // tokens * self._groups

    def tokens(self, i: Index) -> list[Expr]:
        """int32: those of each member of pass i, of this call."""
        members = range(self.tile.members)
        return [tirx.Cast("int32", tirx.min(self._token(i, k), self.last - 1)) for k in members]

    def begin(self, q: Buffer, walk: Walk) -> None:
        """Nothing seen; the queries, scaled, in the order of rows."""
        d, lanes = self.a.d, v.lanes_for(self.a.d)
        with T.serial(0, self.passes) as i, T.serial(0, self.tile.members) as k:
            row, token = i * self.tile.members + k, tirx.min(self._token(i, k), self.last - 1)
            walk.state.reset(row)
            with T.serial(0, d // lanes) as j:
                part = v.load(q, 0, token, self._query_head(i, k), j * lanes, lanes=lanes)
                v.store(part * v.splat(scale_of(d), lanes), walk.q, row, j * lanes, lanes=lanes)

    def finish(self, walk: Walk, o: Buffer) -> None:
        """Write what the rows of real tokens have become."""
        with T.serial(0, self.passes) as i, T.serial(0, self.tile.members) as k:
            token = self._token(i, k)
            with T.If(token < self.last), T.Then():
                column = self._query_head(i, k) * self.a.d
                walk.state.finish(i * self.tile.members + k, o, (0, token), column)

    @property
    def _groups(self) -> int:
        return self.per_key // self.tile.heads

    def _token(self, i: Index, k: Index) -> Expr:
        return self.first + i // self._groups * self.tile.tokens + k // self.tile.heads

    def _query_head(self, i: Index, k: Index) -> Expr:
        group, heads = i % self._groups, self.tile.heads
        return self.head * self.per_key + group * heads + k % heads
