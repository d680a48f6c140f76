"""Attention of many tokens of each sequence: over each other, or over TVM's paged KV cache.

A block takes a tile of rows, the query heads of one key head of some tokens in a row, and walks
the keys a tile at a time with a running softmax (FlashAttention, Dao et al. 2022, algorithm 1),
in powers of two.
"""

from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_pages import Pages
from mlc_compile.schedule.kernels.gpu.attention_tile import Keys, State, Task
from mlc_compile.schedule.kernels.gpu.attention_tiling import LOG2_E, Tiling
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

BLOCKS: Final = 2  # on a multiprocessor


def ragged(a: Attention, dtype: str, device: Device) -> tirx.PrimFunc:
    """q[m, h_q, d] over k, v [n, h_kv, d] -> o[m, h_q, d], lse f32[m, h_q], in powers of two.

    Sequence s has the rows from q_indptr[s] to q_indptr[s + 1], and of k and v those by
    kv_indptr. The signature is that of the builtin; what RoPE at this late point would need is
    not read.
    """
    m, n, lanes = v.size("m"), v.size("n"), g.lanes_for(a.d)
    with v.kernel() as builder:
        batch = v.size("batch")
        q = v.argument("q", (m, a.h_q, a.d), dtype)
        q_indptr = g.view("q_indptr", (batch + 1,), "int32")
        sides = [v.argument(name, (n, a.h_kv, a.d), dtype) for name in ("k", "v")]
        kv_indptr = g.view("kv_indptr", (batch + 1,), "int32")
        g.view("q_rope_position", (m,), "int32")
        g.view("k_rope_offset", (batch,), "int32")

        def load(side: int, sequence: Expr, token: Expr, head: Expr, column: Expr) -> Expr:
            row = kv_indptr[sequence] + token
            return v.load(sides[side], row, head, column, lanes=lanes)

        keys = Keys(lambda s: kv_indptr[s + 1] - kv_indptr[s], load)
        _attend(a, Tiling.of(a, dtype, device), (q, q_indptr, m, batch), keys, device)
    return builder.get()


def paged(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """q[m, h_q, d] over the pages -> o[m, h_q, d], lse f32[m, h_q], as `ragged`."""
    m, lanes = v.size("m"), g.lanes_for(a.d)
    with v.kernel() as builder:
        batch = v.size("batch")
        q = v.argument("q", (m, a.h_q, a.d), dtype)
        q_indptr = g.view("q_indptr", (batch + 1,), "int32")
        pages = Pages.declare(a, dtype, page, batch)
        g.view("k_rope_offset", (batch,), "int32")
        g.view("q_rope_position", (m,), "int32")

        def load(side: int, sequence: Expr, token: Expr, head: Expr, column: Expr) -> Expr:
            at = (pages.page_of(sequence, token), side, head, token % page, column)
            return v.load(pages.data, *at, lanes=lanes)

        keys = Keys(pages.length, load)
        _attend(a, Tiling.of(a, dtype, device), (q, q_indptr, m, batch), keys, device)
    return builder.get()


def _attend(
    a: Attention,
    t: Tiling,
    queries: tuple[Buffer, Buffer, Expr, Expr],
    keys: Keys,
    device: Device,
) -> None:
    """The rest of the parameters, and the kernel."""
    q, q_indptr, m, batch = queries
    o = v.argument("o", (m, a.h_q, a.d), t.dtype)
    lse = v.argument("lse", (m, a.h_q))
    causal = g.number("causal", "int32")
    g.number("rotary_mode", "int32")
    g.number("rope_scale", v.F32)
    g.number("rope_theta", v.F32)
    scale = g.number("scale", v.F32)
    group = a.h_q // a.h_kv
    tiles = m * group // t.rows + batch  # rounded up in each sequence
    with g.each_block(tiles * a.h_kv, device, threads=t.threads) as (block, thread):
        tile, sequence = _find(q_indptr, block // a.h_kv, batch, group, t.rows)
        with g.resident(BLOCKS), T.If(sequence >= 0), T.Then():
            task = Task.make(t, q_indptr, keys, sequence, tile, block % a.h_kv, thread, group)
            state = State.make(t)
            task.load_queries(q, state)
            seen = T.bind(task.seen(causal))
            with T.serial(0, g.blocks_of(seen, t.keys)) as i:
                task.fold(state, T.bind(i * t.keys), causal, T.bind(scale * v.const(LOG2_E)))
            task.finish(state, o, lse)


def _find(indptr: Buffer, tile: Expr, batch: Expr, group: int, rows: int) -> tuple[Expr, Expr]:
    """Which tile of which sequence a block has; of sequence -1 if there is none left for it."""
    left, found = g.registers(1, dtype="int32"), g.registers(1, dtype="int32")
    v.put(tirx.Cast("int32", tile), left, 0)
    v.put(v.int32(-1), found, 0)
    with T.serial(0, tirx.Cast("int32", batch)) as s, T.If(found[0] < 0), T.Then():
        tiles = T.bind(g.blocks_of((indptr[s + 1] - indptr[s]) * group, rows))
        with T.If(left[0] < tiles):
            with T.Then():
                v.put(s, found, 0)
            with T.Else():
                v.put(left[0] - tiles, left, 0)
    return T.bind(left[0]), T.bind(found[0])
