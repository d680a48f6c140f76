"""Tile registers in plain TIR, for machines without: each operation as Intel's manual says it.

Shapes are read back from the bytes that the kernel configured, as the processor does. What it
would answer with an exception (#UD, #GP) makes NaN of all that is stored afterwards. Sums are
in the manual's order: over the lower halves, over the upper ones, the two added, then to the
tile. It differs in one thing: Intel's takes subnormal numbers for zero.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.tiles import COLUMNS, PALETTE, ROWS, TILES

CONFIG = 16  # words
LEGAL = 0


@dataclass
class EmulatedTiles:
    """A `TileUnit`; `log` has the operations in the order in which they were written."""

    log: list[tuple] = field(default_factory=list)

    def configure(self, config):
        self.log.append(("configure",))
        self.config = v.workspace((CONFIG,), "int32")
        self.legal = v.workspace((1,), "int32")
        self.tiles = v.workspace((TILES, ROWS, COLUMNS), "int32")
        with T.serial(0, CONFIG) as word:
            v.put(config[word], self.config, word)
        v.put(self._is_valid(), self.legal, LEGAL)
        for tile in range(TILES):
            self._clear(tile)

    def zero(self, tile):
        self.log.append(("zero", tile))
        self._require(self._is_configured(tile))
        self._clear(tile)

    def load(self, tile, buffer, *index, passing=False):
        del passing  # a hint
        self.log.append(("load", tile))
        self._require(self._is_configured(tile))
        self._clear(tile)
        with self._each(tile) as (row, column):
            word = tirx.reinterpret("int32", buffer[_place(index, row, column)])
            v.put(word, self.tiles, tile, row, column)

    def store(self, tile, buffer, *index):
        self.log.append(("store", tile))
        self._require(self._is_configured(tile))
        with self._each(tile) as (row, column):
            number = tirx.reinterpret(buffer.dtype, self.tiles[tile, row, column])
            answer = tirx.Select(self.legal[LEGAL] == 1, number, v.const(float("nan")))
            v.put(answer, buffer, *_place(index, row, column))

    def multiply(self, sums, a, b):
        self.log.append(("multiply", sums, a, b))
        assert len({sums, a, b}) == 3, "#UD: the tiles must differ"
        self._require(
            tirx.all(
                *map(self._is_configured, (sums, a, b)),
                self._rows(sums) == self._rows(a),
                self._row_bytes(sums) == self._row_bytes(b),
                self._row_bytes(a) == self._rows(b) * 4,
            )
        )
        with T.serial(0, ROWS) as row:
            halves = v.local(2)
            v.clear(halves, 2)
            with T.serial(0, COLUMNS) as p:
                left = v.splat_i32(self.tiles[a, row, p])
                right = v.load(self.tiles, b, p, 0)
                for half, number in enumerate((_lower, _upper)):
                    v.accumulate(halves, half, number(left) * number(right))
            both = v.load(halves, 0, 0) + v.load(halves, 1, 0)
            total = tirx.reinterpret("float32x16", v.load(self.tiles, sums, row, 0)) + both
            v.store(tirx.reinterpret("int32x16", total), self.tiles, sums, row, 0)

    def release(self):
        self.log.append(("release",))
        with T.serial(0, CONFIG) as word:
            v.put(v.int32(0), self.config, word)

    def _is_valid(self):
        """1 for a configuration that ldtilecfg takes, else 0."""
        reserved = [1, 2, 3, *range(4 + TILES // 2, 12), *range(12 + TILES // 4, CONFIG)]
        zeros = [self.config[word] == 0 for word in reserved]
        alone = self.config[0] == PALETTE  # start row and the bytes after it are zero too
        sizes = [
            tirx.all(self._rows(t) <= ROWS, self._row_bytes(t) <= 4 * COLUMNS) for t in range(TILES)
        ]
        none = [tirx.all(self._rows(t) == 0, self._row_bytes(t) == 0) for t in range(TILES)]
        some = [tirx.all(self._rows(t) > 0, self._row_bytes(t) > 0) for t in range(TILES)]
        both = [tirx.any(*pair) for pair in zip(none, some, strict=True)]
        return tirx.Select(tirx.all(alone, *zeros, *sizes, *both), v.int32(1), v.int32(0))

    def _is_configured(self, tile):
        return tirx.all(self.config[0] == PALETTE, self._rows(tile) > 0)

    def _require(self, condition):
        with T.If(tirx.Not(condition)), T.Then():
            v.put(v.int32(0), self.legal, LEGAL)

    def _clear(self, tile):
        with T.serial(0, ROWS) as row:
            v.store(v.splat_i32(0), self.tiles, tile, row, 0)

    @contextmanager
    def _each(self, tile):
        """Every row and column that the tile has."""
        with T.serial(0, ROWS) as row, T.serial(0, COLUMNS) as column:
            within = tirx.all(row < self._rows(tile), column * 4 < self._row_bytes(tile))
            with T.If(within), T.Then():
                yield row, column

    def _rows(self, tile):
        return (self.config[12 + tile // 4] >> v.int32(8 * (tile % 4))) & v.int32(0xFF)

    def _row_bytes(self, tile):
        return (self.config[4 + tile // 2] >> v.int32(16 * (tile % 2))) & v.int32(0xFFFF)


def _place(index, row, column):
    return (*index[:-2], index[-2] + row, index[-1] + column)


def _lower(words):
    return tirx.reinterpret("float32x16", words << v.splat_i32(16))


def _upper(words):
    return tirx.reinterpret("float32x16", words & v.splat_i32(-1 << 16))
