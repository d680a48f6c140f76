"""Tiles of y by products of small matrices, whose fragments a subgroup's threads hold together.

Where a device has such products: CUDA's `wmma`, Metal's `simdgroup`. Who holds which element of a
fragment is not told, so sums leave by way of shared memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.panels import Shape, Write
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index

PAD: Final = 4  # floats, of a fragment's rows in shared memory: they begin in different banks

Load = Callable[[Buffer, int, Buffer, Expr, int], None]  # fragments, which, panel, start, pitch


@dataclass(frozen=True, slots=True)
class Instructions:
    """How fragments of side x side are named and filled, what multiplies them, and how many fit.

    A subgroup keeps `each` x `each` of sums: so many loads of x and of w feed the square of that.
    """

    side: int
    each: int
    x_scope: str
    w_scope: str
    sum_scope: str
    clear: Callable[[Buffer, int], None]
    load_x: Load
    load_w: Load  # transposed: [side of k, side of n]
    multiply: Callable[[Buffer, int, Buffer, int, Buffer, int], None]  # sums += x w
    store: Callable[[Buffer, int, Expr, int], None]  # sums, which, pointer, pitch


@dataclass(frozen=True, slots=True)
class Matrices:
    """Sums in fragments: subgroup (i, j) has rows i, i + down ..; columns j, j + across .."""

    by: Instructions
    shape: Shape

    @property
    def threads(self) -> int:
        """Of a block."""
        return self._down * self._across * g.SUBGROUP

    def start(self) -> Buffer:
        """A subgroup's sums, zero."""
        count = self.by.each**2
        sums = self._fragments(self.by.sum_scope, count, v.F32)
        for i in range(count):
            self.by.clear(sums, i)
        return sums

    def multiply(self, sums: Buffer, thread: Expr, x: Buffer, w: Buffer) -> None:
        """Add the product of two panels."""
        row, column = self._place(thread)
        by, dtype = self.by, self.shape.dtype
        for k in range(0, self.shape.step, by.side):
            xs = self._fragments(by.x_scope, by.each, dtype)
            ws = self._fragments(by.w_scope, by.each, dtype)
            for i in range(by.each):
                by.load_x(xs, i, x, self._start(row + i * self._down, k), self.shape.pitch)
                by.load_w(ws, i, w, self._start(column + i * self._across, k), self.shape.pitch)
            for i, j in product(range(by.each), repeat=2):
                by.multiply(sums, i * by.each + j, xs, i, ws, j)

    def finish(self, sums: Buffer, thread: Expr, per_output: int, write: Write) -> None:
        """Hand all sums to `write`, by way of shared memory.

        Its pointers are no `access_ptr`: TVM lets the scratch memory begin where a panel was, and
        such a pointer must have the panel's type.
        """
        by, side = self.by, self.by.side
        row, column = self._place(thread)
        subgroup, lane = thread // g.SUBGROUP, thread % g.SUBGROUP
        outputs, pitch = by.each // per_output, side + PAD
        scratch = g.shared(self.threads // g.SUBGROUP * per_output * side * pitch)
        for i, j in product(range(by.each), range(outputs)):
            starts = [(subgroup * per_output + part) * side * pitch for part in range(per_output)]
            g.barrier()
            for part, start in enumerate(starts):
                fragment = i * by.each + j + part * outputs
                by.store(sums, fragment, T.address_of(scratch[start]), pitch)
            g.barrier()
            with T.serial(0, side * side // g.SUBGROUP) as turn:
                at = turn * g.SUBGROUP + lane
                top, left = (row + i * self._down) * side, (column + j * self._across) * side
                values = [scratch[start + at // side * pitch + at % side] for start in starts]
                write(top + at // side, left + at % side, values)

    @property
    def _down(self) -> int:
        return self.shape.m // (self.by.side * self.by.each)

    @property
    def _across(self) -> int:
        return self.shape.n // (self.by.side * self.by.each)

    def _place(self, thread: Expr) -> tuple[Expr, Expr]:
        """Where the subgroup's first fragments are, in fragments."""
        subgroup = thread // g.SUBGROUP
        return subgroup // self._across, subgroup % self._across

    def _start(self, fragment: Expr, k: Index) -> Expr:
        """Of a fragment's rows in a panel."""
        return fragment * self.by.side * self.shape.pitch + k

    def _fragments(self, scope: str, count: int, dtype: str) -> Buffer:
        return T.alloc_buffer((count * self.by.side**2,), dtype, scope=scope)
