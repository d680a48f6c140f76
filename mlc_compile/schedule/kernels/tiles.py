"""Tile registers, as a kernel drives them: eight, each of up to 16 rows of 64 bytes.

    multiply(sums, a, b):  sums[r, c] += sum over p, h of  a[r, p].h b[p, c].h

A number takes four bytes: of `sums` it is a float32, of `a` and `b` a pair of bfloat16, whose
halves are h. What lies beyond a tile's shape is zero. `Amx` writes each operation as one
instruction of Intel's; another unit may write it otherwise. Source: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 1, "Programming with Intel AMX", and volume
2, TDPBF16PS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Target

TILES: Final = 8
ROWS: Final = 16  # the most of a tile
COLUMNS: Final = 16  # of four bytes, the most of a tile
PRODUCTS: Final = 2 * ROWS * COLUMNS * COLUMNS  # of numbers, in one `multiply`
PALETTE: Final = 1  # the way to cut the register file into eight such tiles


class TileUnit(Protocol):
    """What a task does with tiles: `configure` once, at its end `release`.

    A tile in memory is rows along a buffer's last dimension but one, from `index` on; its
    elements have four bytes.
    """

    def configure(self, config: Buffer) -> None:
        """Take the shapes that `configuration` wrote, and set all tiles to zero."""

    def zero(self, tile: int) -> None:
        """Set a tile to zero."""

    def load(self, tile: int, buffer: Buffer, *index: Index, passing: bool = False) -> None:
        """Read a tile; one that is `passing` should not push others out of the L1 cache."""

    def store(self, tile: int, buffer: Buffer, *index: Index) -> None:
        """Write a tile."""

    def multiply(self, sums: int, a: int, b: int) -> None:
        """Add the products of `a` and `b` to `sums`."""

    def release(self) -> None:
        """Forget shapes and tiles: the thread's next task knows nothing of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and columns of a tile, both at least 1."""

    rows: Index = ROWS
    columns: Index = COLUMNS


def configuration(shapes: Sequence[Shape]) -> Buffer:
    """The shapes of tiles 0, 1, .., as the 64 bytes that `configure` takes.

    Byte 0 is the palette, the 16 bits at byte 16 + 2 t are the bytes of a row of tile t, byte
    48 + t is its number of rows. All else is zero.
    """
    words: list[Expr] = [v.int32(0)] * 16
    words[0] = v.int32(PALETTE)
    for tile, shape in enumerate(shapes):
        row_bytes, rows = _int32(shape.columns) * v.int32(4), _int32(shape.rows)
        words[4 + tile // 2] |= row_bytes << v.int32(16 * (tile % 2))
        words[12 + tile // 4] |= rows << v.int32(8 * (tile % 4))
    config = v.workspace((len(words),), "int32")
    for i, word in enumerate(words):
        v.put(word, config, i)
    return config


Place = tuple[Buffer, tuple[Index, ...]]  # a buffer and where a tile of it begins


@dataclass(frozen=True, slots=True)
class Block:
    """`m` by `n` tiles of sums, and who is who among the registers.

    First the sums, row by row, then the m tiles of a, then the n of b that are multiplied.
    """

    unit: TileUnit
    m: int = 2
    n: int = 2

    @property
    def _of_a(self) -> range:
        start = self.m * self.n
        return range(start, start + self.m)

    @property
    def _of_b(self) -> range:
        return range(self._of_a.stop, self._of_a.stop + self.n)

    def configure(self, rows: Index = ROWS, columns: Sequence[Index] = ()) -> None:
        """Tiles of a have so many rows, those of b so many columns, 16 unless `columns` says."""
        widths = columns or [COLUMNS] * self.n
        sums = [Shape(rows, width) for _ in self._of_a for width in widths]
        of_a = [Shape(rows, COLUMNS) for _ in self._of_a]
        of_b = [Shape(ROWS, width) for width in widths]
        self.unit.configure(configuration([*sums, *of_a, *of_b]))

    def begin(self, base: Sequence[Place] | None = None) -> None:
        """Sums from zero, or from what lies at the places `base`."""
        for number in range(self.m * self.n):
            if base is None:
                self.unit.zero(number)
            else:
                buffer, index = base[number]
                self.unit.load(number, buffer, *index)

    def add(self, a: Sequence[Place], b: Sequence[Place], *, passing: bool = False) -> None:
        """Add the products of m tiles with n; `passing` is said of all of them."""
        for number, (buffer, index) in enumerate([*a, *b], self._of_a.start):
            self.unit.load(number, buffer, *index, passing=passing)
        for i, left in enumerate(self._of_a):
            for j, right in enumerate(self._of_b):
                self.unit.multiply(i * self.n + j, left, right)

    def end(self, places: Sequence[Place]) -> None:
        """Write the sums."""
        for number, (buffer, index) in enumerate(places):
            self.unit.store(number, buffer, *index)


def steps(m: Expr, count: int) -> Expr:
    """So often `count` tiles of x cover all m rows."""
    rows = count * ROWS
    return (m + (rows - 1)) // rows


def rows_of(m: Expr) -> Expr:
    """What tiles of x have: fewer than 16 only where x has."""
    return tirx.min(m, tirx.IntImm("int64", ROWS))


def first_row(number: Expr, m: Expr) -> Expr:
    """Where tile `number` of x begins, so that it ends with row m at the latest."""
    zero = tirx.IntImm("int64", 0)
    return tirx.max(tirx.min(number * ROWS, m - ROWS), zero)


@dataclass(frozen=True, slots=True)
class Amx:
    """Intel's instructions. The process must have asked for them: see `mlc_compile.amx`."""

    def configure(self, config: Buffer) -> None:
        _emit("ldtilecfg", tirx.address_of(config[0]))

    def zero(self, tile: int) -> None:
        _emit("tilezero", _number(tile))

    def load(self, tile: int, buffer: Buffer, *index: Index, passing: bool = False) -> None:
        name = "tileloaddt164" if passing else "tileloadd64"
        _emit(name, _number(tile), *_place(buffer, index))

    def store(self, tile: int, buffer: Buffer, *index: Index) -> None:
        _emit("tilestored64", _number(tile), *_place(buffer, index))

    def multiply(self, sums: int, a: int, b: int) -> None:
        _emit("tdpbf16ps", *map(_number, (sums, a, b)))

    def release(self) -> None:
        _emit("tilerelease")


def unit_for(target: Target) -> TileUnit | None:
    """What every CPU of the target multiplies tiles with."""
    return Amx() if target.bf16_tiles else None


def _emit(name: str, *args: Expr) -> None:
    """An instruction with effects that LLVM does not see through: it stays where it is put."""
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


def _number(tile: int) -> Expr:
    assert 0 <= tile < TILES
    return tirx.IntImm("uint8", tile)


def _place(buffer: Buffer, index: Sequence[Index]) -> tuple[Expr, Expr]:
    """The address of an element, and the bytes from a row to the next."""
    return tirx.address_of(buffer[tuple(index)]), tirx.IntImm("int64", 4 * int(buffer.shape[-1]))


def _int32(value: Index) -> Expr:
    return v.int32(value) if isinstance(value, int) else tirx.Cast("int32", value)
