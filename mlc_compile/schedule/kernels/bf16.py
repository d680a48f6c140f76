"""Two bfloat16 in a word, as tiles multiply them: that of k below, that of k + 16 above.

Word p of a group of 32 k has one meaning in both factors, whatever it is: a tile is multiplied
word by word. Rounding is to the nearest, of two the one further from zero, which takes one
addition where Intel's own rounding to even takes four.
"""

from collections.abc import Callable
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index

PAIRS: Final = GROUP // 2  # words of a group: the columns of one factor's tile, the other's rows


def pair(low: Expr, high: Expr) -> Expr:
    """Two float32x16, rounded to bfloat16, as int32x16: `high` in the upper halves."""
    upper = v.splat_i32(-1 << 16)
    below = (_rounded(low) >> v.splat_i32(16)) & v.splat_i32(0xFFFF)
    return below | (_rounded(high) & upper)


def store_pairs(load: Callable[[Index], Expr], groups: int, to: Buffer, *at: Index) -> None:
    """Write `groups` groups of a row, as words from to[at] on; `load(k)` gives those from k on."""
    *row, start = at
    with T.serial(0, groups) as g:
        word = pair(load(g * GROUP), load(g * GROUP + PAIRS))
        v.store(word, to, *row, start + g * PAIRS)


def _rounded(x: Expr) -> Expr:
    """The bits of x, whose upper half is the nearest bfloat16.

    Infinity stays, and so does a NaN as arithmetic makes it.
    """
    bits = tirx.reinterpret(f"uint32x{LANES}", x)
    half = tirx.Broadcast(tirx.IntImm("uint32", 0x8000), LANES)
    return tirx.reinterpret(f"int32x{LANES}", bits + half)  # unsigned: it may wrap
