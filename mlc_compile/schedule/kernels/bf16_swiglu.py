"""silu(gate) * up of a product in bfloat16, rounded: what the next product on tiles reads.

    gate, up = x w^T, the first and the second half of the rows of w;  see `bf16_gemm`

Row block b of gate and of up are multiplied side by side, so that both sums of an output meet.
Two such strips give 32 outputs, a group of `bf16`: their sums stay in the L1 cache until the
second is there, and y is written once, in two bytes a number.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import rounded_words
from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.bf16 import PAIRS, pair
from mlc_compile.schedule.kernels.bf16_panels import Strips, most_for
from mlc_compile.schedule.kernels.elementary import silu_bf16
from mlc_compile.schedule.kernels.tiles import Block, TileUnit
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

HALVES: Final = 2  # gate and up; and strips of a group of outputs


@dataclass(frozen=True, slots=True)
class Tile:
    """`m` tiles of x at a time, and groups of outputs of a panel, at most."""

    m: int = 2
    outputs: int = 1

    def panel_bytes(self, k: int) -> int:
        """What a thread unpacks to."""
        return 2 * k * ROWS * HALVES * HALVES * self.outputs

    @classmethod
    def of(cls, target: Target, k: int) -> "Tile":
        """Panels as large as `most_for` says."""
        return cls(outputs=most_for(target, KNOBS["outputs"], cls().panel_bytes(k), k))

    @classmethod
    def space(cls, target: Target, k: int) -> "Space[Tile]":
        """Any will do."""
        return Space(cls.of(target, k), KNOBS)


KNOBS: Final = {"m": (1, 2), "outputs": (1, 2, 4)}


def gemm(codec: Int4, n: int, unit: TileUnit, tile: Tile) -> tirx.PrimFunc:
    """pairs i32[1, m, words(k)], parts of w[n, k] -> i32[1, m, words(n / 2)]."""
    half = n // HALVES
    assert half % GROUP == 0, "words pair two strips"
    m = v.size("m")
    with v.kernel() as builder:
        x = v.argument("pairs", (1, m, rounded_words(codec.k)), "int32")
        parts = codec.arguments()
        y = v.argument("y", (1, m, rounded_words(half)), "int32")
        block, height = Block(unit, tile.m, HALVES), tiles.rows_of(m)
        with v.share_of(half // GROUP) as (start, end):
            strips = Strips.make(
                codec,
                parts,
                HALVES,
                HALVES * tile.outputs,
                lambda strip, part: part * (half // ROWS) + strip,
            )
            sums = v.workspace((HALVES, tile.m * HALVES, tiles.ROWS, ROWS))
            block.configure(height)
            with (
                strips.panels(start * HALVES, end * HALVES) as (first, count),
                T.serial(0, tiles.steps(m, tile.m)) as step,
                T.serial(0, count // HALVES) as out,
            ):
                rows = [tiles.first_row(step * tile.m + i, m) for i in range(tile.m)]
                for strip in range(HALVES):
                    block.begin()
                    strips.multiply(block, x, rows, first, out * HALVES + strip)
                    block.end([(sums, (strip, t, 0, 0)) for t in range(tile.m * HALVES)])
                for i, row in enumerate(rows):
                    with T.serial(0, height) as r:
                        low, high = (_swiglu(sums, strip, i, r) for strip in range(HALVES))
                        v.store(pair(low, high), y, 0, row + r, (first // HALVES + out) * PAIRS)
            unit.release()
    return builder.get()


def _swiglu(sums: Buffer, strip: int, i: int, row: Index) -> Expr:
    gate, up = (v.load(sums, strip, i * HALVES + b, row, 0) for b in range(HALVES))
    return silu_bf16(gate) * up
