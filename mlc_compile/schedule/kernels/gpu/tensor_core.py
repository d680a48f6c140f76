"""Tiles of y by tensor cores: 16 x 16 x 16 float16 products with float32 sums (CUDA's wmma).

A warp keeps 2 x 2 fragments of sums: four loads feed four products, which on an A100 take as
long as the other instructions that bring in the next step. A block is 64 rows of x and 64 of
w (4 warps), or 128 where w has so many rows that every SM still gets a block: a float32 x,
read from the L2 cache once for each tile of w, then costs half. Rows of a panel are 80 or 144
bytes apart, so the eight rows of a matrix load fall in different banks.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.panels import Shape, Write
from mlc_compile.schedule.kernels.vector import Buffer, Expr

SIDE: Final = 16  # of a fragment
WARP: Final = 32  # threads
FRAGMENTS: Final = 2  # of a warp, each way
PAD: Final = 8  # elements: keeps the 16-byte alignment that matrix loads need
PITCH: Final = SIDE + 4  # of a fragment in shared memory, float32
SQUARE: Final = Shape(m=64, n=64, step=64, pad=PAD, dtype="float16")  # long steps hide latency
WIDE: Final = Shape(m=64, n=128, step=32, pad=PAD, dtype="float16")  # so do other blocks


@dataclass(frozen=True, slots=True)
class TensorCore:
    """Sums in fragments: warp (i, j) has fragments i, i + down and j, j + across of the tile."""

    shape: Shape

    @classmethod
    def of(cls, *, wide: bool) -> "TensorCore":
        """A tile of 64 x 64 with few blocks to an SM, or of 64 x 128 with many."""
        return cls(WIDE if wide else SQUARE)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self._down * self._across * WARP

    def start(self) -> Buffer:
        """A warp's sums, zero."""
        sums = _fragments("accumulator", FRAGMENTS**2, v.F32)
        for i in range(FRAGMENTS**2):
            _matrix(tirx.tvm_fill_fragment, sums.data, i, v.const(0.0))
        return sums

    def multiply(self, sums: Buffer, thread: Expr, x: Buffer, w: Buffer) -> None:
        """Add the product of two panels."""
        row, column = self._place(thread)
        for kk in range(0, self.shape.step, SIDE):
            a = _fragments("matrix_a", FRAGMENTS, "float16")
            b = _fragments("matrix_b", FRAGMENTS, "float16")
            for i in range(FRAGMENTS):
                self._load(a, i, x, row + i * self._down, kk, "row_major")
                self._load(b, i, w, column + i * self._across, kk, "col_major")
            for i in range(FRAGMENTS):
                for j in range(FRAGMENTS):
                    c = sums.data, i * FRAGMENTS + j
                    T.evaluate(tirx.tvm_mma_sync(*c, a.data, i, b.data, j, *c))

    def finish(self, sums: Buffer, thread: Expr, per_output: int, write: Write) -> None:
        """By way of shared memory, since who holds which element of a fragment is not told.

        Not by `access_ptr`: TVM lets the scratch memory begin where a panel was, and such a
        pointer must have the panel's type.
        """
        row, column = self._place(thread)
        warp, lane = thread // WARP, thread % WARP
        outputs, size = FRAGMENTS // per_output, SIDE * PITCH
        scratch = g.shared(self.threads // WARP * per_output * size)
        for i, j in product(range(FRAGMENTS), range(outputs)):
            starts = [(warp * per_output + part) * size for part in range(per_output)]
            g.barrier()
            for part, start in enumerate(starts):
                fragment = i * FRAGMENTS + j + part * outputs
                to = T.address_of(scratch[start])
                _matrix(tirx.tvm_store_matrix_sync, sums.data, fragment, to, PITCH, "row_major")
            g.barrier()
            with T.serial(0, SIDE * SIDE // WARP) as turn:
                y, x = (turn * WARP + lane) // SIDE, (turn * WARP + lane) % SIDE
                top, left = (row + i * self._down) * SIDE, (column + j * self._across) * SIDE
                values = [scratch[start + y * PITCH + x] for start in starts]
                write(top + y, left + x, values)

    @property
    def _down(self) -> int:
        return self.shape.m // (SIDE * FRAGMENTS)

    @property
    def _across(self) -> int:
        return self.shape.n // (SIDE * FRAGMENTS)

    def _place(self, thread: Expr) -> tuple[Expr, Expr]:
        """Where the warp's first fragments are, in fragments."""
        warp = thread // WARP
        return warp // self._across, warp % self._across

    def _load(
        self, fragments: Buffer, index: int, panel: Buffer, row: Expr, kk: int, order: str
    ) -> None:
        start = panel.access_ptr("r", offset=row * SIDE * self.shape.pitch + kk)
        _matrix(tirx.tvm_load_matrix_sync, fragments.data, index, start, self.shape.pitch, order)


def _fragments(scope: str, count: int, dtype: str) -> Buffer:
    return T.alloc_buffer((count * SIDE * SIDE,), dtype, scope=f"wmma.{scope}")


def _matrix(builtin: Any, fragments: Expr, index: int, *arguments: Any) -> None:
    T.evaluate(builtin(fragments, SIDE, SIDE, SIDE, index, *arguments))
