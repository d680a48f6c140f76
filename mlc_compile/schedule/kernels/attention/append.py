"""Put the keys and values of this call into their pages, and give the queries."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.cache import Cache, Place
from mlc_compile.schedule.kernels.attention.inputs import Inputs
from mlc_compile.schedule.kernels.attention.state import scale_of
from mlc_compile.schedule.kernels.attention.tile import ROWS
from mlc_compile.schedule.kernels.bf16 import store_pairs
from mlc_compile.schedule.kernels.vector import Buffer, Index


def append(a: Attention, kv: FlatKV, rows: int | None, *, rounded: bool = False) -> tirx.PrimFunc:
    """qkv, gamma_q[d], gamma_k[d], angles[m, d], cache, layer -> q[1, m, h_q, d].

    If `rounded`, q is pairs i32[1, m, h_q, d/2] instead, times `scale_of(d)`, as tiles take it.

    Normalizes and rotates q and k per head, and writes k and v, rounded, into the pages. A
    task takes one key head of ROWS tokens, so that the lines of its transposed page, which
    every token writes, stay in the L1 cache.
    """
    m = v.size("m") if rows is None else rows
    per_key = a.h_q // a.h_kv
    with v.kernel() as builder:
        inputs = Inputs.declare(a, m)
        cache = Cache.declare(kv)
        layer = v.scalar("layer")
        q = (
            v.argument("q", (1, m, a.h_q, a.d // 2), "int32")
            if rounded
            else v.argument("q", (1, m, a.h_q, a.d))
        )
        with v.over((m + (ROWS - 1)) // ROWS * a.h_kv, parallel=rows is None) as task:
            head, first = task % a.h_kv, task // a.h_kv * ROWS
            with T.serial(0, tirx.min(m - first, ROWS)) as t:
                append_token(inputs, first + t, head, cache, layer)
                with T.serial(0, per_key) as g:
                    h = head * per_key + g
                    if rounded:
                        turned = v.workspace((1, a.d))
                        inputs.query(first + t, h, turned, (0,))
                        round_query(turned, q, first + t, h)
                    else:
                        inputs.query(first + t, h, q, (0, first + t, h))
    return builder.get()


def round_query(head: Buffer, q: Buffer, i: Index, h: Index) -> None:
    """Put the query `head`, float32[1, d], scaled, into q[0, i, h] in pairs."""
    d = int(head.shape[1])
    scale = v.splat(scale_of(d))
    store_pairs(lambda k: v.load(head, 0, k) * scale, d // GROUP, q, 0, i, h, 0)


def append_token(inputs: Inputs, i: Index, h: Index, cache: Cache, layer: Index) -> None:
    """Put key head `h` of token `i`, normalized and rotated, and its value into their page."""
    lanes, key = v.lanes_for(inputs.a.d), inputs.key(i, h)
    at, slot = slot_of(cache, i, h, layer)
    cache.put_key(lambda start: v.load(key, 0, start, lanes=lanes), at, slot)
    cache.put_value(lambda start: inputs.value(i, h, start, lanes), at, slot)


def slot_of(cache: Cache, i: Index, h: Index, layer: Index) -> tuple[Place, Index]:
    """The page and the slot of it where key head `h` of token `i` of this call belongs."""
    position = cache.length[0] + tirx.Cast("int32", i)
    return cache.place(layer, position // cache.kv.page, h), position % cache.kv.page
