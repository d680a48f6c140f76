"""y = x w^T for many rows of x in bfloat16, tile by tile: INT4 weights with their scales in.

    y[m, n] = sum over k of  bf16(x[m, k]) bf16(scale[n, k / 32] (code[n, k] - 7))

Products are exact in float32 and summed there, so each factor's rounding to 8 bits is all that
is lost, and no group of k has an epilogue. For the rounding and the pairs of words see the module
`bf16`.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.ops import rounded_words
from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.bf16 import store_pairs
from mlc_compile.schedule.kernels.bf16_panels import Strips, most_for
from mlc_compile.schedule.kernels.quantize import Feed
from mlc_compile.schedule.kernels.tiles import TileUnit
from mlc_compile.schedule.kernels.vector import Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Tile:
    """Tiles of sums that an inner loop of `gemm` holds: `m` of 16 rows of x by `blocks` of w."""

    m: int = 2
    blocks: int = 2
    strips: int = 1  # of `blocks` row blocks that a panel has, at most

    @property
    def held(self) -> int:
        """Tile registers: sums, and what is multiplied."""
        return self.m * self.blocks + self.m + self.blocks

    def panel_bytes(self, k: int) -> int:
        """What a thread unpacks to."""
        return 2 * k * ROWS * self.blocks * self.strips

    @classmethod
    def of(cls, target: Target, codec: Int4, n: int) -> "Tile":
        """Four loads make four products, any other shape loads more; panels by `most_for`."""
        tile = cls(strips=most_for(target, KNOBS["strips"], cls().panel_bytes(codec.k), codec.k))
        return tile if tile.takes(n) else cls()

    def takes(self, n: int) -> bool:
        """Whether it can multiply n rows of w: all strips have tiles of one shape."""
        return self.held <= tiles.TILES and (self.strips == 1 or n % ROWS == 0)

    @classmethod
    def space(cls, target: Target, codec: Int4, n: int) -> "Space[Tile]":
        """Every shape that eight registers hold."""
        return Space(cls.of(target, codec, n), KNOBS, lambda tile: tile.takes(n))


KNOBS: Final = {"m": (1, 2, 3), "blocks": (1, 2, 3), "strips": (1, 2, 4, 8)}


def round_rows(feed: Feed) -> tirx.PrimFunc:
    """x[1, m, k] of `feed` -> pairs i32[1, m, words]; what pads a row is not written."""
    m = v.size("m")
    with v.kernel() as builder:
        inputs = feed.declare(m)
        pairs = v.argument("pairs", (1, m, rounded_words(feed.k)), "int32")
        with T.parallel(0, m) as row:
            load = feed.start(inputs, row)
            store_pairs(load, feed.k // GROUP, pairs, 0, row, 0)
    return builder.get()


def gemm(codec: Int4, n: int, unit: TileUnit, tile: Tile, *, residual: bool) -> tirx.PrimFunc:
    """pairs i32[1, m, words], parts of w[n, k], residual if any -> y[1, m, n].

    A thread takes a share of w, panel by panel (see `bf16_panels`), and sweeps the rows of x over
    each. Sums begin with the residual and are stored where they belong: a ragged last block has
    narrower tiles, few rows have lower ones, and where tiles do not end with the rows or the
    blocks the last ones overlap and write the same.
    """
    assert tile.takes(n)
    m = v.size("m")
    with v.kernel() as builder:
        x = v.argument("pairs", (1, m, rounded_words(codec.k)), "int32")
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        block = tiles.Block(unit, tile.m, tile.blocks)
        with v.share_of(-(-codec.blocks // tile.blocks)) as (start, end):

            def number(strip: Index, i: int) -> Expr:
                return tirx.min(strip * tile.blocks + i, codec.blocks - 1)

            strips = Strips.make(codec, parts, tile.blocks, tile.strips, number)
            with strips.panels(start, end) as (first, count):
                widths = [_columns(number(first, i), n) for i in range(tile.blocks)]
                block.configure(tiles.rows_of(m), widths)
                with T.serial(0, tiles.steps(m, tile.m)) as step, T.serial(0, count) as strip:
                    rows = [tiles.first_row(step * tile.m + i, m) for i in range(tile.m)]
                    blocks = [number(first + strip, i) for i in range(tile.blocks)]
                    places = [(0, row, b * ROWS) for row in rows for b in blocks]
                    block.begin(None if base is None else [(base, place) for place in places])
                    strips.multiply(block, x, rows, first, strip)
                    block.end([(y, place) for place in places])
                unit.release()
    return builder.get()


def _columns(block: Expr, n: int) -> Index:
    """Rows of w that a block has: fewer only in a ragged last one."""
    return ROWS if n % ROWS == 0 else tirx.min(v.int32(n) - block * ROWS, v.int32(ROWS))
