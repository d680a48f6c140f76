"""y = x w^T for many rows of x: INT4 weights by int8 activations that `quantize` prepared.

A group of k is summed exactly and scaled once, as in `int8`. Weights are unpacked to bytes
once for all rows: what is unpacked, and which sums are held, is a `Tile`. Where activations
were quantized by more k than a group of the weights has, the weights are requantized to match:
by instructions, scaling each sum of 32 products costs a quarter of what the products do.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import NARROW, Grouping
from mlc_compile.schedule.kernels import strips
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DotProduct
from mlc_compile.schedule.kernels.int8 import STEPS, steps_of
from mlc_compile.schedule.kernels.quantize import Quantized
from mlc_compile.schedule.kernels.requantize import Put, requantize
from mlc_compile.schedule.kernels.strips import Method, Part
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums that an inner loop of `gemm` holds: `m` rows of x by `blocks` row blocks of w."""

    m: int
    blocks: int
    parts: int = 1  # of k: the unpacked weights of one part lie in the cache while it is swept
    ahead: int = 1  # pairs of groups of the next strip that every tile of rows asks for

    @classmethod
    def of(cls, target: Target, codec: Int4) -> "Tile":
        """Integer and float sums take half the vector registers, of many short ones (Arm) 3/4.

        With three rows on AVX2 LLVM spills weights: two are 1.25 times as fast (Zen), and that
        is what the order of instructions written by hand reaches.
        """
        whole = target.f32_lanes >= LANES
        blocks = 2 if whole and codec.blocks % 2 == 0 else 1
        registers = 2 * blocks * max(1, LANES // target.f32_lanes)
        short = not whole and target.vector_registers > 16
        held = target.vector_registers * 3 // 4 if short else target.vector_registers // 2
        return cls(m=max(1, held // registers), blocks=blocks)

    @classmethod
    def space(cls, target: Target, codec: Int4, group: int = GROUP) -> "Space[Tile]":
        """Strips and parts are whole, and the registers hold the integer sums."""
        groups, split = codec.k // group, max(1, LANES // target.f32_lanes)

        def valid(tile: Tile) -> bool:
            held = tile.m * tile.blocks * split
            broken = codec.blocks % tile.blocks or groups % tile.parts
            return not broken and held <= target.vector_registers

        return Space(cls.of(target, codec), TILES, valid)


TILES: Final = {
    "m": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "blocks": (1, 2, 3, 4),
    "parts": (1, 2, 3, 4),
    "ahead": (0, 1, 2),
}


def gemm(
    codec: Int4, n: int, dot: DotProduct, tile: Tile, *, residual: bool, grouping: Grouping = NARROW
) -> tirx.PrimFunc:
    """codes, scales, offsets of x[1, m, k], parts of w[n, k], residual if any -> y[1, m, n].

    A strip is unpacked to bytes, k * 16 for each of its row blocks, for the L2 cache.
    """
    assert dot.widen is None or grouping.group == GROUP, "16 bits hold the sums of one group"

    def panel(groups: int) -> _Panel:
        return _Panel.make(groups, tile.blocks, grouping)

    def add(x: Quantized, panel: _Panel, acc: v.Registers, rows: list[Expr], part: Part) -> None:
        with T.serial(0, part.groups) as g:
            _add_group(x, panel, acc, (rows, g, part.first + g), dot)

    method = Method(tile.m, grouping.group, panel, add)
    return strips.gemm(codec, n, tile, method, residual=residual)


@dataclass(frozen=True, slots=True)
class _Panel:
    """Unpacked weights of a strip: i32[groups, steps, blocks, 16] and [groups, blocks, 16]."""

    codes: Buffer
    scales: Buffer
    blocks: int
    grouping: Grouping

    @classmethod
    def make(cls, groups: int, blocks: int, grouping: Grouping) -> "_Panel":
        return cls(
            codes=v.workspace((groups, STEPS * grouping.weight_groups, blocks, ROWS), "int32"),
            scales=v.workspace((groups, blocks, ROWS)),
            blocks=blocks,
            grouping=grouping,
        )

    @property
    def steps(self) -> int:
        """Dot products of a group."""
        return STEPS * self.grouping.weight_groups

    def fill(
        self, codec: Int4, parts: list[Buffer], source: tuple[Index, Index], at: tuple[Index, int]
    ) -> None:
        """Unpack block and group `source` to group and block `at` of the panel."""
        (block, group), (g, b) = source, at

        def put(step: Index, codes: Expr) -> None:
            v.store(codes, self.codes, g, step, b, 0)

        count = self.grouping.weight_groups
        if count == 1:
            scale = _unpack(codec, parts, source, put)
        else:
            groups = group * count, count
            scale = requantize(codec, parts, block, groups, self.grouping.zero, put)
        v.store(scale, self.scales, g, b, 0)


def _unpack(codec: Int4, parts: list[Buffer], source: tuple[Index, Index], put: Put) -> Expr:
    """The scales of block and group `source`; `put` takes its codes, as `requantize` gives them."""
    for step, codes in steps_of(codec, parts, source):
        put(step, codes)
    return codec.scale(parts, *source)


def _add_group(
    x: Quantized,
    panel: _Panel,
    acc: v.Registers,
    where: tuple[list[Expr], Index, Index],
    dot: DotProduct,
) -> None:
    """acc += one group of k, for every row of the tile and every block of the panel.

    The offset comes last: on Zen 4 all products of Qwen3-0.6B are 1.05 times as fast so.
    """
    rows, held, g = where
    places = [
        (i * panel.blocks + b, row, b) for i, row in enumerate(rows) for b in range(panel.blocks)
    ]
    sums = dot.sums(len(places))
    for step in range(panel.steps):
        codes = [v.load(panel.codes, held, step, b, 0) for b in range(panel.blocks)]
        for register, row, b in places:
            dot.add(sums, register, codes[b], v.splat_i32(x.codes[0, row, g * panel.steps + step]))
    for register, row, b in places:
        total = dot.total(sums, register) + v.splat_i32(x.offsets[0, row, g])
        scale = v.load(panel.scales, held, b, 0) * v.splat(x.scales[0, row, g])
        v.accumulate(*acc[register], v.to_f32(total) * scale)
