"""Tiles of y by ordinary arithmetic: sums in registers, products of what shared memory holds.

A thread keeps 8 x 4 sums, so that 12 vector loads feed 128 multiply-adds, and its rows and
columns are spread over the tile: neighbors read neighboring rows of a panel, from different
banks. That takes 96 registers on NVIDIA's Ampere: five blocks an SM, 20 warps.
"""

from dataclasses import dataclass
from typing import Final

from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.panels import Shape, Write
from mlc_compile.schedule.kernels.vector import Buffer, Expr

SIDE: Final = 64  # of the tile
STEP: Final = 16  # along k: what is fetched ahead leaves room for the sums in 128 registers


@dataclass(frozen=True, slots=True)
class Fma:
    """Sums of a thread: `rows` by `columns`, of a tile of `shape`."""

    shape: Shape
    rows: int = 8
    columns: int = 4

    @classmethod
    def of(cls, dtype: str) -> "Fma":
        """Panels of `dtype`; in float32 they take 10 KiB, which every device has."""
        return cls(Shape(SIDE, SIDE, STEP, g.VECTOR, dtype))

    @property
    def threads(self) -> int:
        """Of a block."""
        return self._down * self._across

    def start(self) -> Buffer:
        """A thread's sums, zero."""
        sums = g.registers(self.rows * self.columns)
        for i in range(self.rows * self.columns):
            v.put(v.const(0.0), sums, i)
        return sums

    def multiply(self, sums: Buffer, thread: Expr, x: Buffer, w: Buffer) -> None:
        """Add the product of two panels."""
        row, column = self._place(thread)
        with T.serial(0, self.shape.step // g.VECTOR) as j:
            ws = [self._load(w, column + c * self._across, j) for c in range(self.columns)]
            for r in range(self.rows):
                xs = self._load(x, row + r * self._down, j)
                for c in range(self.columns):
                    at = r * self.columns + c
                    for i in range(g.VECTOR):
                        v.put(sums[at] + xs[i] * ws[c][i], sums, at)

    def finish(self, sums: Buffer, thread: Expr, per_output: int, write: Write) -> None:
        """Hand all sums to `write`."""
        row, column = self._place(thread)
        outputs = self.columns // per_output
        for r in range(self.rows):
            for c in range(outputs):
                places = [r * self.columns + c + part * outputs for part in range(per_output)]
                at = row + r * self._down, column + c * self._across
                write(*at, [sums[place] for place in places])

    @property
    def _down(self) -> int:
        return self.shape.m // self.rows

    @property
    def _across(self) -> int:
        return self.shape.n // self.columns

    def _place(self, thread: Expr) -> tuple[Expr, Expr]:
        return thread // self._across, thread % self._across

    def _load(self, panel: Buffer, row: Expr, j: Expr) -> list[Expr]:
        vector = T.bind(v.load(panel, row * self.shape.pitch + j * g.VECTOR, lanes=g.VECTOR))
        return [T.bind(e) for e in g.floats(vector, g.VECTOR)]
