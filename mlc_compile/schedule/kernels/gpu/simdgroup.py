"""Metal's simdgroup matrices: products of 8 x 8 x 8 float16 or float32 with float32 sums.

A simdgroup keeps 4 x 4 fragments of sums, each in two registers of a thread: eight loads, which its
threads share, feed sixteen products. Apple GPUs have such matrices from the A14 and M1 on (Metal
feature set tables, family Apple7). The language's specification gives all of a product one type;
Apple's compiler also adds products of half to sums of float, as llama.cpp's kernels rely on.
"""

from functools import partial
from typing import Any, Final, Literal

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu.matrices import Instructions, Matrices
from mlc_compile.schedule.kernels.gpu.panels import Shape
from mlc_compile.schedule.kernels.vector import Buffer, Expr

SIDE: Final = 8
PAD: Final = {"float16": 8, "float32": 4}  # 16 bytes


def matrices(dtype: Literal["float16", "float32"]) -> Matrices:
    """A tile of 64 x 64 from panels of `dtype`, by four simdgroups."""
    return Matrices(INSTRUCTIONS, Shape(m=64, n=64, step=32, pad=PAD[dtype], dtype=dtype))


def _clear(sums: Buffer, i: int) -> None:
    _matrix("make_filled_simdgroup_matrix", sums.data, i, v.const(0.0), SIDE, SIDE)


def _load(transposed: bool, to: Buffer, i: int, panel: Buffer, start: Expr, pitch: int) -> None:
    place = panel.access_ptr("r", offset=start)
    _matrix("simdgroup_load", to.data, i, place, pitch, SIDE, SIDE, transposed)


def _multiply(sums: Buffer, at: int, x: Buffer, i: int, w: Buffer, j: int) -> None:
    operands = sums.data, at, x.data, i, w.data, j, sums.data, at
    _matrix("simdgroup_multiply_accumulate", *operands)


def _store(sums: Buffer, i: int, to: Expr, pitch: int) -> None:
    _matrix("simdgroup_store", sums.data, i, to, pitch, SIDE, SIDE, False)


def _matrix(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_intrin("void", f"tirx.{name}", *arguments))


INSTRUCTIONS: Final = Instructions(
    side=SIDE,
    each=4,
    x_scope="metal.simdgroup",
    w_scope="metal.simdgroup",
    sum_scope="metal.simdgroup",
    clear=_clear,
    load_x=partial(_load, False),
    load_w=partial(_load, True),
    multiply=_multiply,
    store=_store,
)
