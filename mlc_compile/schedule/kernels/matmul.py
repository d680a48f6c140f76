"""y = x wᵀ for weights in blocks of 16 rows: one row of x (`gemv`) or many (`gemm`).

Activations and sums are float32. Threads take blocks of rows of w, so each weight is read
once a call, whatever the number of rows of x.
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import ROWS
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Codec
from mlc_compile.target import Target

PANEL_K = 1024  # float32 panel of 2 blocks: 128 KiB, within any L2 cache of the last decade
CHAINS = 2  # independent sums a row block: hides the latency of the fused multiply-add


@dataclass(frozen=True, slots=True)
class Tile:
    """How much of y one inner loop of `gemm` holds in registers, and how deep a panel is."""

    m: int  # rows of x
    blocks: int  # row blocks of w
    k: int  # at most this many k are decoded at a time; the panel must fit the L2 cache

    @classmethod
    def of(cls, target: Target, codec: Codec) -> "Tile":
        """Sums take three quarters of the vector registers; the rest holds w and x."""
        blocks = 2 if target.f32_lanes >= ROWS and codec.blocks % 2 == 0 else 1
        registers = blocks * ROWS // min(target.f32_lanes, ROWS)
        m = max(1, target.vector_registers * 3 // 4 // registers)
        return cls(m=m, blocks=blocks, k=_panel_depth(codec))


def gemv(codec: Codec, n: int, *, residual: bool = False) -> tirx.PrimFunc:
    """x[1, 1, k], parts of w[n, k], residual like y if any -> y[1, 1, n].

    Decoding's matmul, bound by reading w.
    """
    groups = codec.k // codec.group
    with v.kernel() as builder:
        x = v.argument("x", (1, 1, codec.k))
        parts = codec.arguments()
        base = v.argument("residual", (1, 1, n)) if residual else None
        y = v.argument("y", (1, 1, n))
        with T.parallel(0, codec.blocks) as block:
            acc = v.local(1)
            v.clear(acc, 1)
            with T.serial(0, groups) as g:
                v.accumulate(acc, 0, _dot_group(codec, parts, x, block, g))
            v.put_rows(acc, 0, y, (0, 0), block * ROWS, n, base)
    return builder.get()


def gemm(codec: Codec, n: int, tile: Tile, *, residual: bool = False) -> tirx.PrimFunc:
    """x[1, m, k], parts of w[n, k], residual like y if any -> y[1, m, n], m symbolic.

    Prefill's matmul. A thread decodes `tile.blocks` row blocks of w, `tile.k` deep, into a
    float32 panel, then sweeps the rows of x over it, `tile.m` at a time. The last tile is
    ragged: its surplus rows repeat the last row and write what that row writes.
    """
    m = v.size("m")
    strips = codec.blocks // tile.blocks
    with v.kernel() as builder:
        x = v.argument("x", (1, m, codec.k))
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        with T.parallel(0, strips) as strip:
            panel = v.workspace((tile.k, tile.blocks, ROWS))
            with T.serial(0, codec.k // tile.k) as depth:
                _decode_panel(codec, parts, panel, strip, depth, tile)
                with T.serial(0, (m + (tile.m - 1)) // tile.m) as step:
                    _multiply_tile(x, (y, base), panel, (strip, depth, step), n, tile)
    return builder.get()


def _dot_group(codec: Codec, parts: list[Buffer], x: Buffer, block: Index, g: Index) -> Expr:
    """The block's share of y from one group of k."""
    part = v.local(CHAINS)
    v.clear(part, CHAINS)
    turn = iter(range(codec.group))

    def use(kk: int, w: Expr) -> None:
        v.accumulate(part, next(turn) % CHAINS, w * v.splat(x[0, 0, g * codec.group + kk]))

    codec.each(parts, block, g, use)
    joined = v.load(part, 0, 0)
    for chain in range(1, CHAINS):
        joined = joined + v.load(part, chain, 0)
    scale = codec.scale(parts, block, g)
    return joined if scale is None else joined * scale


def _decode_panel(
    codec: Codec, parts: list[Buffer], panel: Buffer, strip: Index, depth: Index, tile: Tile
) -> None:
    groups = tile.k // codec.group
    with T.serial(0, groups) as g:
        for b in range(tile.blocks):
            block, group = strip * tile.blocks + b, depth * groups + g
            scale = codec.scale(parts, block, group)

            def use(kk: int, w: Expr, b: int = b, scale: Expr | None = scale) -> None:
                value = w if scale is None else w * scale
                v.store(value, panel, g * codec.group + kk, b, 0)

            codec.each(parts, block, group, use)


def _multiply_tile(
    x: Buffer,
    sink: tuple[Buffer, Buffer | None],
    panel: Buffer,
    where: tuple[Index, Index, Index],
    n: int,
    tile: Tile,
) -> None:
    """Add the panel's share to a tile of y, which begins as the residual if there is one."""
    (y, base), (strip, depth, step) = sink, where
    m = x.shape[1]
    rows = [tirx.min(step * tile.m + i, m - 1) for i in range(tile.m)]
    places = [
        (i * tile.blocks + b, row, strip * tile.blocks + b)
        for i, row in enumerate(rows)
        for b in range(tile.blocks)
    ]
    acc = v.local(len(places))
    # All sums are read before any is written, so that repeated rows stay equal.
    with T.If(depth == 0):
        with T.Then():
            v.clear(acc, len(places))
            if base is not None:
                for register, row, block in places:
                    _load_rows(base, row, block, n, acc, register)
        with T.Else():
            for register, row, block in places:
                _load_rows(y, row, block, n, acc, register)
    with T.serial(0, tile.k) as kk:
        w = [v.load(panel, kk, b, 0) for b in range(tile.blocks)]
        for i, row in enumerate(rows):
            a = v.splat(x[0, row, depth * tile.k + kk])
            for b in range(tile.blocks):
                v.accumulate(acc, i * tile.blocks + b, w[b] * a)
    for register, row, block in places:
        v.put_rows(acc, register, y, (0, row), block * ROWS, n)


def _load_rows(y: Buffer, row: Index, block: Index, n: int, acc: Buffer, register: int) -> None:
    """acc[register] = y[0, row, rows of the block]."""
    if n % ROWS == 0:
        v.store(v.load(y, 0, row, block * ROWS), acc, register, 0)
        return
    for lane in range(ROWS):
        with T.If(block * ROWS + lane < n), T.Then():
            v.put(y[0, row, block * ROWS + lane], acc, register, lane)


def _panel_depth(codec: Codec) -> int:
    """The deepest panel of whole groups that divides k."""
    groups = codec.k // codec.group
    most = max(1, PANEL_K // codec.group)
    return codec.group * max(d for d in range(1, min(most, groups) + 1) if groups % d == 0)
