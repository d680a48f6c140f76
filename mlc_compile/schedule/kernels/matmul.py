"""y = x wᵀ for weights in blocks of 16 rows: one row of x (`gemv`) or many (`gemm`).

Activations and sums are float32. Threads take blocks of rows of w, so each weight is read
once a call, whatever the number of rows of x.

With `eps`, x is the RMSNorm of an argument by another, gamma f32[k], and never written:

    y[i, n] = (sum over k of  x[i, k] gamma[k] w[n, k]) · rsqrt(mean(x[i]²) + eps)

Each thread of `gemv` multiplies the one row by gamma before its first block of w. `gemm`
multiplies w by it where w is decoded, once a weight and not once a row, and works out the
factors of all rows first, over threads. Both apply the factor to finished sums.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import ROWS
from mlc_compile.schedule.kernels import norm
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Codec
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

PANEL_K = 1024  # float32 panel of 2 blocks: 128 KiB, within any L2 cache of the last decade


@dataclass(frozen=True, slots=True)
class Tile:
    """How much of y one inner loop of `gemm` holds in registers, and how deep a panel is."""

    m: int  # rows of x
    blocks: int  # row blocks of w
    k: int  # at most this many k are decoded at a time; the panel must fit the L2 cache
    stacked: int = 0  # 1: the sums lie on the stack however many they are

    @classmethod
    def of(cls, target: Target, codec: Codec) -> "Tile":
        """Sums take three quarters of the vector registers; the rest holds w and x."""
        blocks = 2 if target.f32_lanes >= ROWS and codec.blocks % 2 == 0 else 1
        registers = blocks * ROWS // min(target.f32_lanes, ROWS)
        m = max(1, target.vector_registers * 3 // 4 // registers)
        return cls(m=m, blocks=blocks, k=_panel_depth(codec))

    @classmethod
    def space(cls, target: Target, codec: Codec) -> "Space[Tile]":
        """Strips and panels are whole, and the registers hold the sums."""
        split = max(1, ROWS // target.f32_lanes)

        def valid(tile: Tile) -> bool:
            broken = codec.blocks % tile.blocks or codec.k % tile.k or tile.k % codec.group
            return not broken and tile.m * tile.blocks * split <= target.vector_registers

        return Space(cls.of(target, codec), TILES, valid)


TILES: Final = {
    "m": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14),
    "blocks": (1, 2, 3, 4),
    "k": (64, 128, 256, 512, 1024, 2048),
    "stacked": (0, 1),
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a task of `gemv` sums up its block."""

    chains: int = 2  # independent sums: they hide the latency of the fused multiply-add

    @classmethod
    def space(cls) -> "Space[Sweep]":
        """Any will do."""
        return Space(cls(), {"chains": (1, 2, 4, 8)})


SWEEP: Final = Sweep()


def gemv(
    codec: Codec,
    n: int,
    sweep: Sweep = SWEEP,
    *,
    eps: float | None = None,
    residual: bool = False,
) -> tirx.PrimFunc:
    """x[1, 1, k], gamma[k] if `eps`, parts of w[n, k], residual like y if any -> y[1, 1, n].

    Decoding's matmul, bound by reading w.
    """
    groups = codec.k // codec.group
    with v.kernel() as builder:
        x = v.argument("x", (1, 1, codec.k))
        gamma = v.argument("gamma", (codec.k,)) if eps is not None else None
        parts = codec.arguments()
        base = v.argument("residual", (1, 1, n)) if residual else None
        y = v.argument("y", (1, 1, n))
        with _each_thread_if(gamma, codec.blocks):
            factor = None
            if gamma is not None and eps is not None:
                x, given = v.workspace((1, 1, codec.k)), x
                factor = norm.weigh((given, (0, 0)), gamma, (x, (0, 0)), codec.k, eps)
            with T.parallel(0, codec.blocks) as block:
                acc = v.local(1)
                v.clear(acc, 1)
                with T.serial(0, groups) as g:
                    v.accumulate(acc, 0, _dot_group(codec, parts, x, (block, g), sweep.chains))
                _scale(acc, 0, factor)
                v.put_rows(acc, 0, y, (0, 0), block * ROWS, n, base)
    return builder.get()


def gemm(
    codec: Codec, n: int, tile: Tile, *, eps: float | None = None, residual: bool = False
) -> tirx.PrimFunc:
    """x[1, m, k], gamma[k] if `eps`, parts of w[n, k], residual like y if any -> y[1, m, n].

    Prefill's matmul, m symbolic. A thread decodes `tile.blocks` row blocks of w, `tile.k`
    deep, into a float32 panel, then sweeps the rows of x over it, `tile.m` at a time. The last
    tile is ragged: its surplus rows repeat the last row and write what that row writes.
    """
    m = v.size("m")
    strips = codec.blocks // tile.blocks
    with v.kernel() as builder:
        x = v.argument("x", (1, m, codec.k))
        gamma = v.argument("gamma", (codec.k,)) if eps is not None else None
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        factors = None if eps is None else _factors(x, eps)
        sink = _Sink(y, base, factors, n, codec.k // tile.k)
        with T.parallel(0, strips) as strip:
            panel = v.workspace((tile.k, tile.blocks, ROWS))
            with T.serial(0, sink.panels) as depth:
                _decode_panel(codec, (parts, gamma), panel, (strip, depth), tile)
                with T.serial(0, (m + (tile.m - 1)) // tile.m) as step:
                    _multiply_tile(x, sink, panel, (strip, depth, step), tile)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Sink:
    """Where sums of `gemm` go: y, between panels too; with the last, factors and residual."""

    y: Buffer
    base: Buffer | None  # the residual
    factors: Buffer | None  # of the rows of x, where they are normalized
    n: int
    panels: int  # that k is cut into


def _each_thread_if(gamma: Buffer | None, tasks: int) -> AbstractContextManager[None]:
    """A launch whose threads all prepare x, if there is something to prepare."""
    return nullcontext() if gamma is None else v.every_thread(tasks)


def _factors(x: Buffer, eps: float) -> Buffer:
    """f32[m]: what the norm multiplies each row by, beside gamma."""
    _, m, k = x.shape
    factors = v.workspace((m,))
    with T.parallel(0, m) as row:
        v.put(norm.inverse_rms(x, (0, row), int(k), eps), factors, row)
    return factors


def _scale(acc: Buffer, register: int, factor: Expr | None) -> None:
    if factor is not None:
        v.store(v.load(acc, register, 0) * v.splat(factor), acc, register, 0)


def _dot_group(
    codec: Codec, parts: list[Buffer], x: Buffer, at: tuple[Index, Index], chains: int
) -> Expr:
    """The block's share of y from one group of k."""
    block, g = at
    part = v.local(chains)
    v.clear(part, chains)
    turn = iter(range(codec.group))

    def use(kk: int, w: Expr) -> None:
        v.accumulate(part, next(turn) % chains, w * v.splat(x[0, 0, g * codec.group + kk]))

    codec.each(parts, block, g, use)
    joined = v.load(part, 0, 0)
    for chain in range(1, chains):
        joined = joined + v.load(part, chain, 0)
    scale = codec.scale(parts, block, g)
    return joined if scale is None else joined * scale


def _decode_panel(
    codec: Codec,
    given: tuple[list[Buffer], Buffer | None],
    panel: Buffer,
    where: tuple[Index, Index],
    tile: Tile,
) -> None:
    """Write the weights of a strip, multiplied by gamma if there is one, `tile.k` deep."""
    (parts, gamma), (strip, depth) = given, where
    groups = tile.k // codec.group
    with T.serial(0, groups) as g:
        for b in range(tile.blocks):
            block, group = strip * tile.blocks + b, depth * groups + g
            scale = codec.scale(parts, block, group)

            def use(
                kk: int, w: Expr, b: int = b, group: Index = group, scale: Expr | None = scale
            ) -> None:
                value = w if scale is None else w * scale
                if gamma is not None:
                    value = value * v.splat(gamma[group * codec.group + kk])
                v.store(value, panel, g * codec.group + kk, b, 0)

            codec.each(parts, block, group, use)


def _multiply_tile(
    x: Buffer, sink: _Sink, panel: Buffer, where: tuple[Index, Index, Index], tile: Tile
) -> None:
    """Add the panel's share to a tile of y.

    Sums begin as the residual, unless they must first be multiplied by the rows' factors.
    """
    y, (strip, depth, step) = sink.y, where
    m = x.shape[1]
    rows = [tirx.min(step * tile.m + i, m - 1) for i in range(tile.m)]
    places = [
        (i * tile.blocks + b, row, strip * tile.blocks + b)
        for i, row in enumerate(rows)
        for b in range(tile.blocks)
    ]
    acc = v.Registers.make(len(places), stacked=bool(tile.stacked))
    # All sums are read before any is written, so that repeated rows stay equal.
    with T.If(depth == 0):
        with T.Then():
            acc.clear()
            if sink.base is not None and sink.factors is None:
                for register, row, block in places:
                    v.get_rows(sink.base, (0, row), block * ROWS, sink.n, *acc[register])
        with T.Else():
            for register, row, block in places:
                v.get_rows(y, (0, row), block * ROWS, sink.n, *acc[register])
    with T.serial(0, tile.k) as kk:
        w = [v.load(panel, kk, b, 0) for b in range(tile.blocks)]
        for i, row in enumerate(rows):
            a = v.splat(x[0, row, depth * tile.k + kk])
            for b in range(tile.blocks):
                v.accumulate(*acc[i * tile.blocks + b], w[b] * a)
    if sink.factors is None:
        _write(acc, places, sink, None)
        return
    with T.If(depth == sink.panels - 1):
        with T.Then():
            for register, row, _ in places:
                _scale(*acc[register], sink.factors[row])
            _write(acc, places, sink, sink.base)
        with T.Else():
            _write(acc, places, sink, None)


def _write(
    acc: v.Registers, places: list[tuple[int, Index, Index]], sink: _Sink, base: Buffer | None
) -> None:
    for register, row, block in places:
        v.put_rows(*acc[register], sink.y, (0, row), block * ROWS, sink.n, base)


def _panel_depth(codec: Codec) -> int:
    """The deepest panel of whole groups that divides k."""
    groups = codec.k // codec.group
    most = max(1, PANEL_K // codec.group)
    return codec.group * max(d for d in range(1, min(most, groups) + 1) if groups % d == 0)
