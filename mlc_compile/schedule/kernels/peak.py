"""As many products as a machine makes: tiles of sums in registers, all that is read in L1.

    sums[r, b] += w[step, b] . x[step, r]      for every step, over and over

It computes nothing of use. The fastest tile is the roof of arithmetic that kernels here have,
since it is their inner loop without what feeds it. What is read changes from step to step, or
a compiler would multiply once.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import tiles
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DotProduct
from mlc_compile.schedule.kernels.tiles import TileUnit

DEPTH: Final = 128  # steps: what they read of w fits the smallest L1
ROUNDS: Final = 256
TASKS: Final = 48  # shared out evenly among most numbers of threads


@dataclass(frozen=True, slots=True)
class Sums:
    """A tile: rows of x by row blocks of w."""

    rows: int = 4
    blocks: int = 2

    @property
    def products(self) -> int:
        """Vectors of sums added to in one call."""
        return TASKS * ROUNDS * DEPTH * self.rows * self.blocks


class FloatSums:
    """What a DotProduct is for integers, for float32."""

    def sums(self, count: int) -> v.Registers:
        """`count` vectors of sums, all zero."""
        made = v.Registers.make(count)
        made.clear()
        return made

    def add(self, sums: v.Registers, register: int, w: v.Expr, x: v.Expr) -> None:
        """One step of a vector of sums."""
        v.accumulate(*sums[register], w * x)

    def total(self, sums: v.Registers, register: int) -> v.Expr:
        """A vector of sums."""
        return v.load(*sums[register], 0)


TILES: Final = (Sums(2, 2), Sums(4, 2), Sums(6, 2), Sums(6, 4))
OF_TILES: Final = Sums(2, 2)  # the most products a load that eight tile registers allow


def peak(tile: Sums, dot: DotProduct | None) -> tirx.PrimFunc:
    """x[DEPTH, rows], w[DEPTH, blocks, 16] -> y[TASKS, rows * blocks, 16].

    Integers by `dot`, four to an int32; without it float32. Sums of 16 bits wrap.
    """
    dtype, unit = (v.F32, FloatSums()) if dot is None else ("int32", dot)
    count = tile.rows * tile.blocks
    with v.kernel() as builder:
        x = v.argument("x", (DEPTH, tile.rows), dtype)
        w = v.argument("w", (DEPTH, tile.blocks, v.LANES), dtype)
        y = v.argument("y", (TASKS, count, v.LANES), "float32")
        with T.parallel(0, TASKS) as task:
            sums = unit.sums(count)
            with T.serial(0, ROUNDS), T.serial(0, DEPTH) as step:
                loaded = [v.load(w, step, b, 0) for b in range(tile.blocks)]
                for register in range(count):
                    r, b = divmod(register, tile.blocks)
                    unit.add(sums, register, loaded[b], tirx.Broadcast(x[step, r], v.LANES))
            for register in range(count):
                v.store(v.to_f32(unit.total(sums, register)), y, task, register, 0)
    return builder.get()


def tile_peak(tile: Sums, unit: TileUnit) -> tirx.PrimFunc:
    """pairs i32[rows, 16, 16] and i32[blocks, 16, 16] -> y[TASKS, rows * blocks, 16, 16].

    The same of tiles of bfloat16: `rows` and `blocks` count tiles.
    """
    side, count = tiles.ROWS, tile.rows * tile.blocks
    with v.kernel() as builder:
        x = v.argument("x", (tile.rows, side, side), "int32")
        w = v.argument("w", (tile.blocks, side, side), "int32")
        y = v.argument("y", (TASKS, count, side, side))
        read = [(x, r) for r in range(tile.rows)] + [(w, b) for b in range(tile.blocks)]
        with T.parallel(0, TASKS) as task:
            unit.configure(tiles.configuration([tiles.Shape()] * (count + len(read))))
            for number in range(count):
                unit.zero(number)
            with T.serial(0, ROUNDS * DEPTH):
                for number, (buffer, i) in enumerate(read, count):
                    unit.load(number, buffer, i, 0, 0)
                for number in range(count):
                    r, b = divmod(number, tile.blocks)
                    unit.multiply(number, count + r, count + tile.rows + b)
            for number in range(count):
                unit.store(number, y, task, number, 0, 0)
            unit.release()
    return builder.get()
