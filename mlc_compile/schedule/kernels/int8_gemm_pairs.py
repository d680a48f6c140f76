"""y = x w^T for many rows of x, where an instruction multiplies 2 rows by 2 over 8 k: Arm's i8mm.

    sums[i, j] += x[i, 0..7] . w[j, 0..7]    i, j = 0, 1; int8 by int8, added in int32

That is twice the products of `sdot`. All sums stay 2 by 2 until k ends: the lanes of a
register are x0 w0, x0 w1, x1 w0, x1 w1. As in `int8_gemm` with groups of 32, a group of k is
summed exactly and scaled once, in the same order and so to the same bits; w is unpacked once.
Unpacking also pairs it: a lane of `rows16` holds 4 k of a row, so the lanes of two steps in
turn are 2 rows by 8 k. And it takes the zero point off, so that groups need no offsets.
Rows of x meet on their way into registers, so whoever quantizes need not know who multiplies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS, ZERO_POINT
from mlc_compile.schedule.kernels import strips
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import smmla
from mlc_compile.schedule.kernels.int8 import WORDS, unpacked
from mlc_compile.schedule.kernels.quantize import Quantized
from mlc_compile.schedule.kernels.strips import Method, Part
from mlc_compile.schedule.kernels.vector import F32, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

QUAD: Final = 4  # int32 lanes of a register: 2 by 2 sums, or 2 rows by 8 bytes
STEPS: Final = GROUP // 8  # instructions that a group of k takes
COLUMNS: Final = ROWS // 2  # pairs of rows of w in a block

Row = tuple[Buffer, int]  # of `v.Registers`


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums that an inner loop of `gemm` holds: `pairs` of rows of x by `blocks` row blocks of w."""

    pairs: int
    blocks: int
    turn: int = 2  # pairs of rows of w whose integer sums are held at a time
    parts: int = 1  # of k: the unpacked weights of one part lie in the cache while it is swept
    ahead: int = 0  # pairs of groups of the next strip that every tile of rows asks for

    @property
    def columns(self) -> int:
        """Pairs of rows of w."""
        return self.blocks * COLUMNS

    @classmethod
    def of(cls, codec: Int4) -> "Tile":
        """Two row blocks, of which the float sums take 16 registers, or one.

        Two pairs of x by one block would read less, but hold more of x, and LLVM spills.
        """
        return cls(pairs=1, blocks=1 if codec.blocks % 2 else 2)

    @classmethod
    def space(cls, target: Target, codec: Int4) -> "Space[Tile]":
        """Strips and parts are whole, and the registers hold the sums."""

        def valid(tile: Tile) -> bool:
            held = tile.pairs * (tile.columns + tile.turn)
            broken = codec.blocks % tile.blocks or codec.k // GROUP % tile.parts
            return not broken and held < target.vector_registers

        return Space(cls.of(codec), TILES, valid)


TILES: Final = {
    "pairs": (1, 2, 3),
    "blocks": (1, 2),
    "turn": (1, 2, 4, 8),
    "parts": (1, 2, 3, 4),
    "ahead": (0, 1, 2),
}


def gemm(codec: Int4, n: int, tile: Tile, *, residual: bool) -> tirx.PrimFunc:
    """codes, scales, offsets of x[1, m, k], parts of w[n, k], residual if any -> y[1, m, n].

    The parameters are those of `int8_gemm.gemm`; the offsets are not read.
    """

    def panel(groups: int) -> _Panel:
        return _Panel.make(groups, tile.columns)

    def add(x: Quantized, panel: _Panel, sums: v.Registers, rows: list[Expr], part: Part) -> None:
        acc = _paired(sums, tile)
        with T.serial(0, part.groups) as g:
            _add_group(x, panel, acc, (rows, g, part.first + g), tile)
        _unpaired(acc, sums, tile)

    return strips.gemm(codec, n, tile, Method(2 * tile.pairs, GROUP, panel, add), residual=residual)


@dataclass(frozen=True, slots=True)
class _Panel:
    """Unpacked weights of a strip by pairs of rows: what an instruction takes, for each group.

    codes i32[groups, columns, 4, 4]: bytes -7..8, in a quad those of 8 k of both rows;
    scales f32[groups, columns, 4]: both rows' twice, as the sums lie.
    """

    codes: Buffer
    scales: Buffer

    @classmethod
    def make(cls, groups: int, columns: int) -> "_Panel":
        return cls(
            codes=v.workspace((groups, columns, STEPS, QUAD), "int32"),
            scales=v.workspace((groups, columns, QUAD)),
        )

    def fill(
        self, codec: Int4, weights: list[Buffer], source: tuple[Index, Index], at: tuple[Index, int]
    ) -> None:
        """Unpack block and group `source` to group and block `at` of the panel."""
        g, b = at
        words = (codec.word(weights, *source, word) for word in range(WORDS))
        low, high = zip(*map(unpacked, words), strict=True)
        fours = v.Registers.make(2 * STEPS, "int32")  # 4 k of 16 rows each, in the order of k
        for i, codes in enumerate((*low, *high)):
            v.store(_centered(codes), *fours[i], 0)
        scales = v.local(1)
        v.store(codec.scale(weights, *source), scales, 0, 0)
        for pair in range(COLUMNS):
            even, odd = 2 * pair, 2 * pair + 1
            to = g, b * COLUMNS + pair
            twice = _picked((v.load(scales, 0, 0),), (even, odd, even, odd))
            v.store(twice, self.scales, *to, 0, lanes=QUAD)
            for step in range(STEPS):
                eight = [v.load(*fours[2 * step + i], 0) for i in range(2)]
                quad = _picked(eight, (even, ROWS + even, odd, ROWS + odd))
                v.store(quad, self.codes, *to, step, 0, lanes=QUAD)


def _add_group(
    x: Quantized,
    panel: _Panel,
    acc: v.Registers,
    where: tuple[list[Expr], Index, Index],
    tile: Tile,
) -> None:
    """acc += one group of k, for every pair of rows of x and of the panel."""
    rows, held, g = where
    acts = v.Registers.make(tile.pairs * STEPS, "int32", QUAD)
    factors = v.Registers.make(tile.pairs, lanes=QUAD)
    for p in range(tile.pairs):
        both = rows[2 * p], rows[2 * p + 1]
        v.store(_scales(x, both, g), *factors[p], 0, lanes=QUAD)
        for step in range(STEPS):
            v.store(_codes(x, both, g, step), *acts[p * STEPS + step], 0, lanes=QUAD)
    sums = v.Registers.make(tile.pairs * tile.turn, "int32", QUAD)
    for first in range(0, tile.columns, tile.turn):
        places = [
            (c * tile.pairs + p, p, first + c) for c in range(tile.turn) for p in range(tile.pairs)
        ]
        for register, _, _ in places:
            v.store(v.splat_i32(0, QUAD), *sums[register], 0, lanes=QUAD)
        for step in range(STEPS):
            for register, p, column in places:
                at = sums[register]
                codes = v.load(panel.codes, held, column, step, 0, lanes=QUAD)
                pair = v.load(*acts[p * STEPS + step], 0, lanes=QUAD)
                v.store(smmla(v.load(*at, 0, lanes=QUAD), codes, pair), *at, 0, lanes=QUAD)
        for register, p, column in places:
            total = v.to_f32(v.load(*sums[register], 0, lanes=QUAD), QUAD)
            weights = v.load(panel.scales, held, column, 0, lanes=QUAD)
            scale = weights * v.load(*factors[p], 0, lanes=QUAD)
            at = acc[p * tile.columns + column]
            v.store(v.load(*at, 0, lanes=QUAD) + total * scale, *at, 0, lanes=QUAD)


def _codes(x: Quantized, rows: tuple[Expr, Expr], g: Index, step: int) -> Expr:
    """int32x4: 8 k of either row; they are loaded 16 at a time."""
    half = (tirx.vectorlow, tirx.vectorhigh)[step % 2]
    at = g * (GROUP // 4) + step // 2 * QUAD
    eights = [half("int32x2", v.load(x.codes, 0, row, at, lanes=QUAD)) for row in rows]
    return tirx.vectorcombine("int32x4", *eights)


def _scales(x: Quantized, rows: tuple[Expr, Expr], g: Index) -> Expr:
    """float32x4: either row's scale, twice."""
    return tirx.vectorcombine(f"{F32}x4", *(v.splat(x.scales[0, row, g], 2) for row in rows))


def _paired(sums: v.Registers, tile: Tile) -> v.Registers:
    """2 by 2 what `sums` holds by rows."""
    acc = v.Registers.make(tile.pairs * tile.columns, lanes=QUAD)
    for register, above, below, lane in _crossings(sums, tile):
        halves = [v.load(*row, lane, lanes=2) for row in (above, below)]
        quad = tirx.vectorcombine(f"{F32}x4", *halves)
        v.store(quad, *acc[register], 0, lanes=QUAD)
    return acc


def _unpaired(acc: v.Registers, sums: v.Registers, tile: Tile) -> None:
    """The reverse of `_paired`."""
    for register, above, below, lane in _crossings(sums, tile):
        quad = v.load(*acc[register], 0, lanes=QUAD)
        v.store(tirx.vectorlow(f"{F32}x2", quad), *above, lane, lanes=2)
        v.store(tirx.vectorhigh(f"{F32}x2", quad), *below, lane, lanes=2)


def _crossings(sums: v.Registers, tile: Tile) -> list[tuple[int, Row, Row, int]]:
    """Of each 2 by 2 sums: its register, the two rows that it is of, and its first lane there."""
    found = []
    for p in range(tile.pairs):
        for column in range(tile.columns):
            block, pair = divmod(column, COLUMNS)
            above, below = (sums[(2 * p + i) * tile.blocks + block] for i in range(2))
            found.append((p * tile.columns + column, above, below, 2 * pair))
    return found


def _centered(codes: Expr) -> Expr:
    """Bytes 0..15 without their zero point."""
    kind = f"int8x{4 * ROWS}"
    zero = tirx.Broadcast(tirx.IntImm("int8", ZERO_POINT), 4 * ROWS)
    return tirx.reinterpret(f"int32x{ROWS}", tirx.reinterpret(kind, codes) - zero)


def _picked(vectors: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """A vector of these lanes of `vectors`, counted from one to the next."""
    return tirx.Shuffle(list(vectors), [v.int32(lane) for lane in lanes])
