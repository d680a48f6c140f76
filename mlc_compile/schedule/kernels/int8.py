"""y = x w^T with INT4 weights and int8 activations: integer sums a group, scaled once a group.

    y[m, n] = sum over g of  s_w[n, g] s_x[m, g] (sum over k in g of (code_w - 7) code_x)

The inner sum is exact in int32; float32 sees one multiply-add a group. `gemv` reads one
row of x, quantizing it in every thread (cheaper than a barrier), and may end in SwiGLU;
`gemm` takes rows that `quantize` prepared.
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DotProduct
from mlc_compile.schedule.kernels.quantize import Feed, Quantized, quantize_row
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.target import Target

STEPS = GROUP // 4  # dot products a group
WORDS = STEPS // 2  # words of codes a group: each holds two steps


def gemv(
    codec: Int4,
    n: int,
    feed: Feed,
    dot: DotProduct,
    *,
    residual: bool = False,
    swiglu: bool = False,
) -> tirx.PrimFunc:
    """x[1, 1, k] of `feed`, parts of w[n, k], residual like y if any -> y[1, 1, n].

    With `swiglu` the rows of w are gate's and then up's, both in whole blocks, and
    y[1, 1, n/2] is silu(gate) * up (+ residual): a block of each is summed side by side.
    """
    assert not swiglu or n % (2 * ROWS) == 0, "SwiGLU takes two halves of whole blocks"
    joined = 2 if swiglu else 1
    outputs, tasks = n // joined, codec.blocks // joined
    with v.kernel() as builder:
        inputs = feed.declare(1)
        parts = codec.arguments()
        base = v.argument("residual", (1, 1, outputs)) if residual else None
        y = v.argument("y", (1, 1, outputs))
        with v.every_thread(tasks):
            x = Quantized(
                codes=v.workspace((1, codec.k // 4), "int32"),
                scales=v.workspace((1, codec.k // GROUP)),
                offsets=v.workspace((1, codec.k // GROUP), "int32"),
            )
            quantize_row(feed, inputs, 0, x, (0,))
            with T.parallel(0, tasks) as task:
                blocks = [task + part * tasks for part in range(joined)]
                acc = _sums(codec, parts, x, blocks, dot)
                if swiglu:
                    v.store(v.silu(v.load(acc, 0, 0)) * v.load(acc, 1, 0), acc, 0, 0)
                v.put_rows(acc, 0, y, (0, 0), task * ROWS, outputs, base)
    return builder.get()


def _sums(
    codec: Int4, parts: list[Buffer], x: Quantized, blocks: list[Expr], dot: DotProduct
) -> Buffer:
    """x times each of `blocks`, side by side so that x is read once: a register for each."""
    acc, groups = v.local(len(blocks)), codec.k // GROUP
    v.clear(acc, len(blocks))

    def add(g: Index) -> None:
        for register, block in enumerate(blocks):
            v.accumulate(acc, register, _dot_group(codec, parts, x, block, g, dot))

    if groups > 1:
        with T.serial(0, groups // 2) as pair:  # as they lie in memory
            add(2 * pair)
            add(2 * pair + 1)
    if groups % 2:
        add(groups - 1)
    return acc


def _dot_group(
    codec: Int4, parts: list[Buffer], x: Quantized, block: Index, g: Index, dot: DotProduct
) -> Expr:
    """The block's share of y from one group of k; two chains of dot products."""
    sums = v.local(2, dtype="int32")
    v.store(v.splat_i32(x.offsets[0, g]), sums, 0, 0)
    v.store(v.splat_i32(0), sums, 1, 0)
    for word in range(WORDS):
        for half, codes in enumerate(_unpacked(codec.word(parts, block, g, word))):
            acts = v.splat_i32(x.codes[0, g * STEPS + half * WORDS + word])
            v.store(dot.apply(v.load(sums, half, 0), codes, acts), sums, half, 0)
    total = v.to_f32(v.load(sums, 0, 0) + v.load(sums, 1, 0))
    return total * (codec.scale(parts, block, g) * v.splat(x.scales[0, g]))


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums that an inner loop of `gemm` holds: `m` rows of x by `blocks` row blocks of w."""

    m: int
    blocks: int

    @classmethod
    def of(cls, target: Target, codec: Int4) -> "Tile":
        """Integer and float sums take three quarters of the vector registers."""
        blocks = 2 if target.f32_lanes >= LANES and codec.blocks % 2 == 0 else 1
        registers = 2 * blocks * max(1, LANES // target.f32_lanes)
        return cls(m=max(1, target.vector_registers * 3 // 4 // registers), blocks=blocks)


def gemm(codec: Int4, n: int, dot: DotProduct, tile: Tile, *, residual: bool) -> tirx.PrimFunc:
    """codes, scales, offsets of x[1, m, k], parts of w[n, k], residual if any -> y[1, m, n].

    A thread unpacks `tile.blocks` row blocks of w to bytes (k * 16 bytes each, for the L2
    cache), then sweeps the rows of x over them. The last tile is ragged: its surplus rows
    repeat the last row and write what that row writes.
    """
    m, groups = v.size("m"), codec.k // GROUP
    with v.kernel() as builder:
        x = Quantized(
            codes=v.argument("acts", (1, m, codec.k // 4), "int32"),
            scales=v.argument("act_scales", (1, m, groups)),
            offsets=v.argument("act_offsets", (1, m, groups), "int32"),
        )
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        with T.parallel(0, codec.blocks // tile.blocks) as strip:
            panel = _Panel.make(groups, tile.blocks)
            with T.serial(0, groups) as g:
                for b in range(tile.blocks):
                    panel.fill(codec, parts, strip * tile.blocks + b, g, b)
            with T.serial(0, (m + (tile.m - 1)) // tile.m) as step:
                rows = [tirx.min(step * tile.m + i, m - 1) for i in range(tile.m)]
                acc = v.local(tile.m * tile.blocks)
                v.clear(acc, tile.m * tile.blocks)
                with T.serial(0, groups) as g:
                    _add_group(x, panel, acc, (rows, g), dot)
                for i, row in enumerate(rows):
                    for b in range(tile.blocks):
                        column = (strip * tile.blocks + b) * ROWS
                        v.put_rows(acc, i * tile.blocks + b, y, (0, row), column, n, base)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Panel:
    """Unpacked weights of a strip: i32[groups, steps, blocks, 16] and [groups, blocks, 16]."""

    codes: Buffer
    scales: Buffer
    blocks: int

    @classmethod
    def make(cls, groups: int, blocks: int) -> "_Panel":
        return cls(
            codes=v.workspace((groups, STEPS, blocks, ROWS), "int32"),
            scales=v.workspace((groups, blocks, ROWS)),
            blocks=blocks,
        )

    def fill(self, codec: Int4, parts: list[Buffer], block: Index, g: Index, b: int) -> None:
        v.store(codec.scale(parts, block, g), self.scales, g, b, 0)
        for word in range(WORDS):
            for half, codes in enumerate(_unpacked(codec.word(parts, block, g, word))):
                v.store(codes, self.codes, g, half * WORDS + word, b, 0)


def _add_group(
    x: Quantized, panel: _Panel, acc: Buffer, where: tuple[list[Expr], Index], dot: DotProduct
) -> None:
    """acc += one group of k, for every row of the tile and every block of the panel."""
    rows, g = where
    places = [
        (i * panel.blocks + b, row, b) for i, row in enumerate(rows) for b in range(panel.blocks)
    ]
    sums = v.local(len(places), dtype="int32")
    for register, row, _ in places:
        v.store(v.splat_i32(x.offsets[0, row, g]), sums, register, 0)
    for step in range(STEPS):
        codes = [v.load(panel.codes, g, step, b, 0) for b in range(panel.blocks)]
        for register, row, b in places:
            acts = v.splat_i32(x.codes[0, row, g * STEPS + step])
            v.store(dot.apply(v.load(sums, register, 0), codes[b], acts), sums, register, 0)
    for register, row, b in places:
        scale = v.load(panel.scales, g, b, 0) * v.splat(x.scales[0, row, g])
        v.accumulate(acc, register, v.to_f32(v.load(sums, register, 0)) * scale)


def _unpacked(packed: Expr) -> tuple[Expr, Expr]:
    """The low and the high nibbles of each byte, as bytes."""
    mask = v.splat_i32(0x0F0F0F0F)
    return packed & mask, (packed >> v.splat_i32(4)) & mask
