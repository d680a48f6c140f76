"""Matrix products of a warp by PTX, which tells what wmma does not: who holds which element.

`mma` multiplies a [16, 16] by the transpose of b [8, 16], both float16, and adds to c [16, 8] in
float32. The r-th group of four neighboring lanes has row r of b, and rows r and r + 8 of a and c.
Of a row of c the i-th of the four has columns 2 i and 2 i + 1; of a row of a or b it has those and
the two that are 8 further (PTX ISA, "Matrix Fragments for mma.m16n8k16"). So c[16, 16], rounded, is
an a where it is. The operators are those that TVM's own tensor intrinsics emit: they take registers
as an array and an index, where `T.ptx` wants each register by itself.
"""

from collections.abc import Callable
from functools import reduce
from typing import Final

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index

M: Final = 16  # rows of a and c
N: Final = 8  # rows of b, columns of c
K: Final = 16  # columns of a and b
A_HELD: Final = M * K // g.SUBGROUP  # elements of a that a lane holds
B_HELD: Final = N * K // g.SUBGROUP
C_HELD: Final = M * N // g.SUBGROUP
QUAD: Final = 4  # lanes that hold a row of c
MATRIX: Final = 8  # rows, and columns, of what `ldmatrix` loads four of
DTYPE: Final = "float16"


def row_of(lane: Expr) -> Expr:
    """Of c, the first of the two rows that a lane holds; the other is 8 further."""
    return lane // QUAD


def column_of(lane: Expr) -> Expr:
    """Of c, the first of the two columns that a lane holds."""
    return lane % QUAD * 2


def load_a(lane: Expr, to: Buffer, at: Index, panel: Buffer, start: Expr, pitch: int) -> None:
    """[16, 16] of a panel in shared memory, from `start` on, as an a in `to[at:]`."""
    _load(to, at, panel, start + lane % M * pitch + lane // M * MATRIX)


def load_pair(lane: Expr, to: Buffer, panel: Buffer, start: Expr, pitch: int) -> None:
    """Rows 0 to 15 of [16, 16] of a panel as two b, one after the other in `to`."""
    row = lane % MATRIX + lane // M * MATRIX
    _load(to, 0, panel, start + row * pitch + lane // MATRIX % 2 * MATRIX)


def load_pair_transposed(lane: Expr, to: Buffer, panel: Buffer, start: Expr, pitch: int) -> None:
    """Columns 0 to 15 of [16, 16] of a panel as two b, one after the other in `to`."""
    column = lane // M * MATRIX
    _load(to, 0, panel, start + lane % M * pitch + column, transposed=True)


def multiply(c: Buffer, at_c: Index, a: Buffer, at_a: Index, b: Buffer, at_b: Index) -> None:
    """c += a bᵀ, each held from that element of the registers on."""
    form = [StringImm(x) for x in ("m16n8k16", "row", "col", "fp16", "fp16", "fp32")]
    operands = (a.data, at_a, b.data, at_b, c.data, at_c)
    T.evaluate(tirx.call_intrin("void", "tirx.ptx_legacy.mma", *form, *operands, False))


def over_row(value: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """`combine` of what the four lanes of a row hold, in each of them."""
    everyone = tirx.const(0xFFFFFFFF, "uint32")

    def join(held: Expr, distance: int) -> Expr:
        other = T.tvm_warp_shuffle_xor(everyone, held, distance, g.SUBGROUP, g.SUBGROUP)
        return T.bind(combine(held, other))

    return reduce(join, (1, 2), T.bind(value))


def _load(to: Buffer, at: Index, panel: Buffer, start: Expr, *, transposed: bool = False) -> None:
    """Four matrices [8, 8], whose rows begin where lanes 0 to 7, 8 to 15 and so on say."""
    where = to.data, at, panel.data, start
    name = "tirx.ptx_legacy.ldmatrix"
    T.evaluate(tirx.call_intrin(DTYPE, name, transposed, 4, StringImm(".b16"), *where))
