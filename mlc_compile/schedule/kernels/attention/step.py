"""Append and attend of one token, in one launch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.append import append_token
from mlc_compile.schedule.kernels.attention.cache import Cache
from mlc_compile.schedule.kernels.attention.inputs import Inputs
from mlc_compile.schedule.kernels.attention.state import MASKED, State, scale_of
from mlc_compile.schedule.kernels.attention.tile import Tile
from mlc_compile.schedule.kernels.attention.walk import Walk
from mlc_compile.schedule.kernels.elementary import exp2
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Target

LEAST: Final = 4  # pages of a key head that are worth a task of their own
GROWTH: Final = 4  # times a tile's splits: the most runs that scratch memory is for


def step(a: Attention, kv: FlatKV, target: Target, tile: Tile | None = None) -> tirx.PrimFunc:
    """qkv, gamma_q[d], gamma_k[d], angles[1, d], cache, layer -> o[1, 1, h_q d].

    A task owns `tile.key_heads` key heads, or with `tile.splits` a run of their pages
    (Flash-Decoding, Dao et al. 2023): where there are more cores than such tasks, and pages
    enough. The last run's task alone writes those heads' keys and values, and alone reads them,
    so no thread waits for another. What the runs found is merged by the caller's thread: it is
    little.
    """
    per_key = a.h_q // a.h_kv
    tile = tile or Tile.of_step(a, kv, target)
    least = max(1, LEAST // tile.key_heads)
    with v.kernel() as builder:
        inputs = Inputs.declare(a, 1)
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        o = v.argument("o", (1, 1, a.h_q * a.d))
        pages = cache.length[0] // kv.page + 1
        splits, partial = 1, None
        if tile.splits > 1:
            most = most_runs(tile.splits, target.cores)
            splits = v.kept(tirx.max(tirx.min(pages // least, most), 1))
            partial = State.make(a.h_q * GROWTH * tile.splits, a.d)
        with T.parallel(0, a.h_kv // tile.key_heads * splits) as task:
            head, run = task // splits * tile.key_heads, task % splits
            walk = Walk.begin(cache, layer, head, per_key, tile)
            with _only(run == splits - 1, tile), T.serial(0, tile.key_heads) as key:
                append_token(inputs, 0, head + key, cache, layer)
            with T.serial(0, tile.key_heads * per_key) as g:
                inputs.query(0, head * per_key + g, walk.q, (g,))
                _scale(walk.q, g, a.d)
                walk.state.reset(g)
            start, end = run * pages // splits, (run + 1) * pages // splits
            blocks = (end - start + (tile.pages - 1)) // tile.pages
            with T.serial(0, blocks) as b, T.serial(0, per_key // tile.heads) as group:
                positions = [cache.length[0]] * tile.heads
                walk.fold(group * tile.heads, positions, start + b * tile.pages, end)
            with T.serial(0, tile.key_heads * per_key) as g:
                h = head * per_key + g
                if partial is None:
                    walk.state.finish(g, o, (0, 0), h * a.d)
                else:
                    walk.state.keep(g, partial, h * splits + run)
        if partial is not None:
            with T.serial(0, a.h_q) as h:
                _merge(partial, h * splits, splits, o, h * a.d)
    return builder.get()


def most_runs(splits: int, cores: int) -> Expr:
    """Of a task's pages: `splits` on up to `cores` threads; on more, in proportion.

    So the last bits of an output are the same on any number of threads up to `cores`, not beyond.
    """
    shared = splits * tirx.call_packed("runtime.NumThreads")
    in_proportion = (shared + (cores - 1)) // cores
    return tirx.max(tirx.min(in_proportion, GROWTH * splits), splits)


@contextmanager
def _only(condition: Expr, tile: Tile) -> Iterator[None]:
    """A block for one of the tasks of some key heads; without splits there is no other."""
    if tile.splits == 1:
        yield
        return
    with T.If(condition), T.Then():
        yield


def _scale(q: Buffer, row: Index, d: int) -> None:
    lanes = v.lanes_for(d)
    with T.serial(0, d // lanes) as j:
        scaled = v.load(q, row, j * lanes, lanes=lanes) * v.splat(scale_of(d), lanes)
        v.store(scaled, q, row, j * lanes, lanes=lanes)


def _merge(partial: State, row: Index, count: Expr, o: Buffer, start: Index) -> None:
    """o[start..] = the mean of `count` rows' outputs by their sums, from `row` on.

    Each row's maximum is replaced by its factor on the way.
    """
    lanes = v.lanes_for(partial.d)
    top, mass = v.local(1, 1), v.local(1)
    v.put(v.const(MASKED), top, 0, 0)
    with T.serial(0, count) as i:
        v.put(tirx.max(top[0, 0], partial.top[row + i]), top, 0, 0)
    v.clear(mass, 1)
    with T.serial(0, count) as i:
        v.put(exp2(partial.top[row + i] - top[0, 0], 1), partial.top, row + i)
        v.accumulate(mass, 0, v.load(partial.mass, row + i, 0) * v.splat(partial.top[row + i]))
    v.put(v.const(1.0) / v.total(mass, 0), top, 0, 0)
    with T.serial(0, partial.d // lanes) as j:
        out = v.local(1, lanes)
        v.store(v.splat(0.0, lanes), out, 0, 0, lanes=lanes)
        with T.serial(0, count) as i:
            part = v.load(partial.out, row + i, j * lanes, lanes=lanes)
            added = v.load(out, 0, 0, lanes=lanes) + part * v.splat(partial.top[row + i], lanes)
            v.store(added, out, 0, 0, lanes=lanes)
        value = v.load(out, 0, 0, lanes=lanes) * v.splat(top[0, 0], lanes)
        v.store(value, o, 0, 0, start + j * lanes, lanes=lanes)
