"""Matrix products of a warp by PTX, which tells what wmma does not: who holds which element.

`mma` multiplies a [16, 16] by the transpose of b [8, 16], both float16, and adds to c [16, 8] in
float32. Of four lanes in a row, the r-th such has row r of b, and rows r and r + 8 of a and c.
In a row of c lane i of the four has columns 2 i and 2 i + 1; in a row of a and b it has those and
the ones 8 further (PTX ISA, "Matrix Fragments for mma.m16n8k16"). So a row of c lies in four
neighboring lanes, and c[16, 16], rounded, is an a where it is.
"""

from collections.abc import Callable
from functools import reduce
from typing import Final

from tvm import tirx
from tvm.ir import StringImm
from tvm.script import tirx as script
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_rows import Place
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index

WARP: Final = 32
M: Final = 16  # rows of a and c
N: Final = 8  # rows of b, columns of c
K: Final = 16  # columns of a and b
A_HELD: Final = M * K // WARP  # elements of a that a lane holds
B_HELD: Final = N * K // WARP
C_HELD: Final = M * N // WARP
QUAD: Final = 4  # lanes that hold a row of c
MATRIX: Final = 8  # rows, and columns, of what `ldmatrix` loads four of
PIECE: Final = 8  # elements of an asynchronous copy: 16 bytes
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


def load_two_b(lane: Expr, to: Buffer, panel: Buffer, start: Expr, pitch: int) -> None:
    """Rows 0 to 15 of [16, 16] of a panel as two b, one after the other in `to`."""
    row = lane % MATRIX + lane // M * MATRIX
    _load(to, 0, panel, start + row * pitch + lane // MATRIX % 2 * MATRIX)


def load_two_b_transposed(lane: Expr, to: Buffer, panel: Buffer, start: Expr, pitch: int) -> None:
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


def copy(source: Place, to: Buffer, at: Expr) -> None:
    """Begin to copy a piece, `PIECE` elements, to shared memory; both begin at 16 bytes."""
    buffer, index = source
    ends = T.address_of(to[at]), 0, T.address_of(buffer[index]), 0
    nbytes = PIECE * 2
    T.evaluate(tirx.call_intrin(DTYPE, "tirx.s_tir.cp_async_raw", *ends, nbytes))


def commit() -> None:
    """What the thread began to copy since the last time is a group."""
    T.evaluate(script.ptx["cp.async.commit_group"]())


def arrived(groups: int = 0) -> None:
    """Wait for all groups of copies of all threads but each one's last `groups`."""
    T.evaluate(script.ptx["cp.async.wait_group"](groups))
    g.barrier()


def _load(to: Buffer, at: Index, panel: Buffer, start: Expr, *, transposed: bool = False) -> None:
    """Four matrices [8, 8], whose rows begin where lanes 0 to 7, 8 to 15 and so on say."""
    where = to.data, at, panel.data, start
    name = "tirx.ptx_legacy.ldmatrix"
    T.evaluate(tirx.call_intrin(DTYPE, name, transposed, 4, StringImm(".b16"), *where))
