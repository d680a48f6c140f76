"""CUDA's tensor cores: products of 16 x 16 x 16 float16 with float32 sums.

A warp keeps 2 x 2 fragments of sums: four loads feed four products, which on an A100 take as
long as the other instructions that bring in the next step. A block is 64 rows of x and 64 of
w (4 warps), or 128 where w has so many rows that every SM still gets a block: a float32 x,
read from the L2 cache once for each tile of w, then costs half. Rows of a panel are 80 or 144
bytes apart, so the eight rows of a matrix load fall in different banks.
"""

from functools import partial
from typing import Any, Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu.matrices import Instructions, Matrices
from mlc_compile.schedule.kernels.gpu.panels import Shape
from mlc_compile.schedule.kernels.vector import Buffer, Expr

SIDE: Final = 16
PAD: Final = 8  # elements: keeps the 16-byte alignment that matrix loads need
SQUARE: Final = Shape(m=64, n=64, step=64, pad=PAD, dtype="float16")  # long steps hide latency
WIDE: Final = Shape(m=64, n=128, step=32, pad=PAD, dtype="float16")  # so do other blocks


def matrices(*, wide: bool) -> Matrices:
    """A tile of 64 x 64 with few blocks to an SM, or of 64 x 128 with many."""
    return Matrices(INSTRUCTIONS, WIDE if wide else SQUARE)


def _clear(sums: Buffer, i: int) -> None:
    _matrix(tirx.tvm_fill_fragment, sums, i, v.const(0.0))


def _load(order: str, to: Buffer, i: int, panel: Buffer, start: Expr, pitch: int) -> None:
    place = panel.access_ptr("r", offset=start)
    _matrix(tirx.tvm_load_matrix_sync, to, i, place, pitch, order)


def _multiply(sums: Buffer, at: int, x: Buffer, i: int, w: Buffer, j: int) -> None:
    T.evaluate(tirx.tvm_mma_sync(sums.data, at, x.data, i, w.data, j, sums.data, at))


def _store(sums: Buffer, i: int, to: Expr, pitch: int) -> None:
    _matrix(tirx.tvm_store_matrix_sync, sums, i, to, pitch, "row_major")


def _matrix(builtin: Any, fragments: Buffer, index: int, *arguments: Any) -> None:
    T.evaluate(builtin(fragments.data, SIDE, SIDE, SIDE, index, *arguments))


INSTRUCTIONS: Final = Instructions(
    side=SIDE,
    each=2,
    x_scope="wmma.matrix_a",
    w_scope="wmma.matrix_b",
    sum_scope="wmma.accumulator",
    clear=_clear,
    load_x=partial(_load, "row_major"),
    load_w=partial(_load, "col_major"),
    multiply=_multiply,
    store=_store,
)
