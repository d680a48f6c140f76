"""y = x w^T for many rows of x in bfloat16, tile by tile: INT4 weights with their scales in.

    y[m, n] = sum over k of  bf16(x[m, k]) bf16(scale[n, k / 32] (code[n, k] - 7))

Products are exact in float32 and summed there, so each factor's rounding to 8 bits is all that
is lost, and no group of k has an epilogue. `bf16` is the nearest, of two the one further from
zero, which takes one addition where Intel's own rounding to even takes four.

Two bfloat16 make a word: that of k below, that of k + 16 above, as a byte of packed weights
holds two codes. So word p of a group of 32 k has one meaning in x and in w, whatever it is: a
tile is multiplied word by word.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS, ZERO_POINT
from mlc_compile.ops import rounded_words
from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.quantize import Feed
from mlc_compile.schedule.kernels.tiles import Shape, TileUnit
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

PAIRS: Final = GROUP // 2  # words of a group: the columns of x's tile, the rows of w's
WORDS: Final = PAIRS // 4  # packed words of a group, for each row: four pairs of codes in one
MAGIC: Final = 0x4B000000  # the bits of 2**23: its lowest mantissa bit is worth 1


@dataclass(frozen=True, slots=True)
class Tile:
    """Tiles of sums that an inner loop of `gemm` holds: `m` of 16 rows of x by `blocks` of w."""

    m: int = 2
    blocks: int = 2
    strips: int = 1  # of `blocks` row blocks that a task unpacks: so often it uses rows of x

    @property
    def held(self) -> int:
        """Tile registers: sums, and what is multiplied."""
        return self.m * self.blocks + self.m + self.blocks

    def panel_bytes(self, k: int) -> int:
        """What a task unpacks."""
        return 2 * k * ROWS * self.blocks * self.strips

    @classmethod
    def of(cls, target: Target, codec: Int4, n: int) -> "Tile":
        """Four loads make four products, any other shape loads more.

        As many strips as half the L2 cache holds: all of x may not fit the other half, and the
        next cache is slow. But a task for each core, and none that repeats what others do.
        """

        def fits(tile: Tile) -> bool:
            tasks, surplus = divmod(codec.blocks, tile.blocks * tile.strips)
            small = 2 * tile.panel_bytes(codec.k) <= target.l2_bytes
            return small and not surplus and tasks >= target.cores and tile.takes(n)

        several = (cls(strips=s) for s in reversed(KNOBS["strips"]))
        return next(filter(fits, several), cls())

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
            with T.serial(0, feed.k // GROUP) as g:
                word = pair(load(g * GROUP), load(g * GROUP + LANES))
                v.store(word, pairs, 0, row, g * PAIRS)
    return builder.get()


def gemm(codec: Int4, n: int, unit: TileUnit, tile: Tile, *, residual: bool) -> tirx.PrimFunc:
    """pairs i32[1, m, words], parts of w[n, k], residual if any -> y[1, m, n].

    A task unpacks row blocks of w to a panel of pairs (k * 32 bytes each, for the L2 cache),
    then sweeps the rows of x over it. Sums begin with the residual and are stored where they
    belong: a ragged last block has narrower tiles, few rows have lower ones, and where tiles do
    not end with the rows or the blocks the last ones overlap and write the same.
    """
    assert tile.takes(n)
    m, groups = v.size("m"), codec.k // GROUP
    with v.kernel() as builder:
        x = v.argument("pairs", (1, m, rounded_words(codec.k)), "int32")
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        with T.parallel(0, -(-codec.blocks // (tile.blocks * tile.strips))) as task:

            def blocks(strip: Index) -> list[Expr]:
                first, last = (task * tile.strips + strip) * tile.blocks, codec.blocks - 1
                return [tirx.min(first + b, v.int32(last)) for b in range(tile.blocks)]

            panel = v.workspace((tile.strips, groups, tile.blocks, PAIRS, ROWS), "int32")
            with T.serial(0, tile.strips) as strip, T.serial(0, groups) as g:
                for b, block in enumerate(blocks(strip)):
                    _unpack(codec, parts, (block, g), (panel, strip, g, b))
            held = _Held(unit, tile)
            held.configure(m, [_columns(block, n) for block in blocks(0)])
            with T.serial(0, _steps(m, tile)) as step, T.serial(0, tile.strips) as strip:
                rows = [_first_row(step * tile.m + i, m) for i in range(tile.m)]
                places = [(0, row, block * ROWS) for row in rows for block in blocks(strip)]
                held.begin(base, places)
                with T.serial(0, groups) as g:
                    held.add(x, [(0, row, g * PAIRS) for row in rows], panel, (strip, g))
                held.end(y, places)
            unit.release()
    return builder.get()


def pair(low: Expr, high: Expr) -> Expr:
    """Two float32x16, rounded to bfloat16, as int32x16: `high` in the upper halves."""
    upper = v.splat_i32(-1 << 16)
    below = (_rounded(low) >> v.splat_i32(16)) & v.splat_i32(0xFFFF)
    return below | (_rounded(high) & upper)


def _rounded(x: Expr) -> Expr:
    """The bits of x, whose upper half is the nearest bfloat16.

    Infinity stays, and so does a NaN as arithmetic makes it.
    """
    bits = tirx.reinterpret(f"uint32x{LANES}", x)
    half = tirx.Broadcast(tirx.IntImm("uint32", 0x8000), LANES)
    return tirx.reinterpret(f"int32x{LANES}", bits + half)  # unsigned: it may wrap


def _unpack(
    codec: Int4,
    parts: list[Buffer],
    source: tuple[Index, Index],
    to: tuple[Buffer, Index, Index, int],
) -> None:
    """A group of a block of w as pairs [16, 16 rows], at strip, group and block of a panel.

    A code is not shifted down but read where it stands: 2**23 or-ed with the code's bits, the
    lowest at bit s, is 2**23 + 2**s code. Taking 2**23 + 2**s 7 from it leaves 2**s (code - 7),
    which a scale of 2**-s times the group's makes the weight. All of that is exact.
    """
    (block, group), (panel, *place) = source, to
    scales = v.local(len(SHIFTS))
    scale = codec.scale(parts, block, group)
    for i, shift in enumerate(SHIFTS):
        v.store(scale * v.splat(2.0**-shift), scales, i, 0)
    for step in range(WORDS):
        halves = v.local(2, dtype="int32")
        v.store(codec.word(parts, block, group, step), halves, 0, 0)
        v.store(v.load(halves, 0, 0) >> v.splat_i32(16), halves, 1, 0)
        for byte in range(4):
            half, first = byte // 2, byte % 2 * 2
            low, high = (_weight(v.load(halves, half, 0), scales, first + i) for i in range(2))
            v.store(pair(low, high), panel, *place, 4 * step + byte, 0)


SHIFTS: Final = (0, 4, 8, 12)  # where the four codes of half a packed word stand


def _weight(word: Expr, scales: Buffer, i: int) -> Expr:
    """float32x16: the weights whose codes stand at SHIFTS[i]."""
    unit = 1 << SHIFTS[i]
    bits = (word & v.splat_i32(15 * unit)) | v.splat_i32(MAGIC)
    offset = float(2**23 + ZERO_POINT * unit)
    return (tirx.reinterpret(f"float32x{LANES}", bits) - v.splat(offset)) * v.load(scales, i, 0)


def _columns(block: Expr, n: int) -> Index:
    """Rows of w that a block has: fewer only in a ragged last one."""
    return ROWS if n % ROWS == 0 else tirx.min(v.int32(n) - block * ROWS, v.int32(ROWS))


def _steps(m: Expr, tile: Tile) -> Expr:
    """Of rows of x, that cover all m."""
    rows = tile.m * tiles.ROWS
    return (m + (rows - 1)) // rows


def _first_row(number: Expr, m: Expr) -> Expr:
    """Where tile `number` of x begins, so that it ends with row m at the latest."""
    zero = tirx.IntImm("int64", 0)
    return tirx.max(tirx.min(number * tiles.ROWS, m - tiles.ROWS), zero)


@dataclass(frozen=True, slots=True)
class _Held:
    """Who is who among the registers: first the sums, row by row, then tiles of x, then of w."""

    unit: TileUnit
    tile: Tile

    @property
    def _of_x(self) -> range:
        start = self.tile.m * self.tile.blocks
        return range(start, start + self.tile.m)

    @property
    def _of_w(self) -> range:
        return range(self._of_x.stop, self._of_x.stop + self.tile.blocks)

    def configure(self, m: Expr, columns: list[Index]) -> None:
        """Tiles of at most m rows of x; `columns` are the rows of w that each block has."""
        rows = tirx.min(m, tirx.IntImm("int64", tiles.ROWS))
        sums = [Shape(rows, width) for _ in self._of_x for width in columns]
        of_x = [Shape(rows, PAIRS) for _ in self._of_x]
        of_w = [Shape(PAIRS, width) for width in columns]
        self.unit.configure(tiles.configuration([*sums, *of_x, *of_w]))

    def begin(self, base: Buffer | None, places: list[tuple[Index, ...]]) -> None:
        """Sums from zero, or from `base` at their places."""
        for number, place in enumerate(places):
            if base is None:
                self.unit.zero(number)
            else:
                self.unit.load(number, base, *place)

    def add(
        self,
        x: Buffer,
        places: list[tuple[Index, ...]],
        panel: Buffer,
        at: tuple[Index, Index],
    ) -> None:
        """The products of one group, whose rows of x begin at `places`; `at` is strip and group."""
        for number, place in zip(self._of_x, places, strict=True):
            self.unit.load(number, x, *place)
        for b, number in enumerate(self._of_w):
            self.unit.load(number, panel, *at, b, 0, 0)
        for i, a in enumerate(self._of_x):
            for b, w in enumerate(self._of_w):
                self.unit.multiply(i * self.tile.blocks + b, a, w)

    def end(self, y: Buffer, places: list[tuple[Index, ...]]) -> None:
        """Write the sums."""
        for number, place in enumerate(places):
            self.unit.store(number, y, *place)
