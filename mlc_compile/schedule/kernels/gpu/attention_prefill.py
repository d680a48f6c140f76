"""Attention of many tokens of each sequence: over each other, or over TVM's paged KV cache.

A block takes a tile of rows, the query heads of one key head of some tokens in a row, and walks
the keys a tile at a time with a running softmax (FlashAttention, Dao et al. 2022, algorithm 1),
in powers of two.
"""

from typing import Final, Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_pages import Pages
from mlc_compile.schedule.kernels.gpu.attention_rows import Keys, Rows
from mlc_compile.schedule.kernels.gpu.attention_tile import Tiles
from mlc_compile.schedule.kernels.gpu.attention_tiling import LOG2_E, Tiling
from mlc_compile.schedule.kernels.gpu.attention_warps import Warps
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

BLOCKS: Final = 2  # on a multiprocessor


class Method(Protocol):
    """How a block attends."""

    @property
    def rows(self) -> int: ...
    @property
    def threads(self) -> int: ...
    def attend(
        self, rows: Rows, thread: Expr, q: Buffer, o: Buffer, lse: Buffer, scale: Expr
    ) -> None:
        """What one thread does for its block's tile; scores times `scale` are powers of two."""


def method_for(a: Attention, dtype: str, device: Device) -> Method:
    """On tensor cores, if there are any that take heads of this size and type."""
    if Warps.fits(a, dtype, device):
        return Warps(a.d)
    return Tiles(Tiling.of(a, dtype, device))


def ragged(a: Attention, dtype: str, device: Device) -> tirx.PrimFunc:
    """q[m, h_q, d] over k, v [n, h_kv, d] -> o[m, h_q, d], lse f32[m, h_q], in powers of two.

    Sequence s has the rows from q_indptr[s] to q_indptr[s + 1], and of k and v those by
    kv_indptr. The signature is that of the builtin; what RoPE at this late point would need is
    not read.
    """
    m, n = v.size("m"), v.size("n")
    with v.kernel() as builder:
        batch = v.size("batch")
        q = v.argument("q", (m, a.h_q, a.d), dtype)
        q_indptr = g.view("q_indptr", (batch + 1,), "int32")
        sides = [v.argument(name, (n, a.h_kv, a.d), dtype) for name in ("k", "v")]
        kv_indptr = g.view("kv_indptr", (batch + 1,), "int32")
        g.view("q_rope_position", (m,), "int32")
        g.view("k_rope_offset", (batch,), "int32")

        def place(side: int, sequence: Expr, token: Expr, head: Expr, column: Expr) -> g.Place:
            return sides[side], (kv_indptr[sequence] + token, head, column)

        keys = Keys(lambda s: kv_indptr[s + 1] - kv_indptr[s], place)
        _attend(a, dtype, (q, q_indptr, m, batch), keys, device)
    return builder.get()


def paged(a: Attention, dtype: str, page: int, device: Device) -> tirx.PrimFunc:
    """q[m, h_q, d] over the pages -> o[m, h_q, d], lse f32[m, h_q], as `ragged`."""
    m = v.size("m")
    with v.kernel() as builder:
        batch = v.size("batch")
        q = v.argument("q", (m, a.h_q, a.d), dtype)
        q_indptr = g.view("q_indptr", (batch + 1,), "int32")
        pages = Pages.declare(a, dtype, page, batch)
        g.view("k_rope_offset", (batch,), "int32")
        g.view("q_rope_position", (m,), "int32")

        def place(side: int, sequence: Expr, token: Expr, head: Expr, column: Expr) -> g.Place:
            at = (pages.page_of(sequence, token), side, head, token % page, column)
            return pages.data, at

        keys = Keys(pages.length, place)
        _attend(a, dtype, (q, q_indptr, m, batch), keys, device)
    return builder.get()


def _attend(
    a: Attention,
    dtype: str,
    queries: tuple[Buffer, Buffer, Expr, Expr],
    keys: Keys,
    device: Device,
) -> None:
    """The rest of the parameters, and the kernel.

    A sequence's last tiles see most keys, so the blocks that begin first have them.
    """
    q, q_indptr, m, batch = queries
    o, lse = v.argument("o", (m, a.h_q, a.d), dtype), v.argument("lse", (m, a.h_q))
    causal = g.number("causal", "int32")
    g.number("rotary_mode", "int32")
    g.number("rope_scale", v.F32)
    g.number("rope_theta", v.F32)
    scale = g.number("scale", v.F32) * v.const(LOG2_E)
    method, group = method_for(a, dtype, device), a.h_q // a.h_kv
    tiles = m * group // method.rows + batch  # rounded up in each sequence
    with g.each_block(tiles * a.h_kv, device, threads=method.threads) as (block, thread):
        number = tiles - 1 - block // a.h_kv
        tile, sequence = _find(q_indptr, number, batch, group, method.rows)
        with g.resident(BLOCKS), T.If(sequence >= 0), T.Then():
            start = T.bind(q_indptr[sequence])
            rows = Rows(
                count=method.rows,
                group=group,
                keys=keys,
                causal=causal,
                sequence=sequence,
                head=block % a.h_kv,
                first=T.bind(tile * method.rows),
                start=start,
                tokens=T.bind(q_indptr[sequence + 1] - start),
                length=T.bind(keys.length(sequence)),
            )
            method.attend(rows, thread, q, o, lse, T.bind(scale))


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
