"""Compute what constants alone decide while compiling.

    multiply(const 2, const 3)   ->   const 6

Computed by numpy, and only operators with one right answer, by IEEE 754 or as plain copying:
libraries made on two machines stay equal byte for byte. TVM's FoldConstant compiles a kernel for
each call, some 30 ms, rounds exp as this machine's libm does, makes constants of any size, and
ends the process where an integer is divided by zero.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import ClassVar, Final

import numpy as np
from tvm import IRModule, relax
from tvm.ir import Op
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator
from tvm.tirx import IntImm

from mlc_compile.passes.algebra import NUMBERS
from mlc_compile.passes.rewrite import Fuser, fuse_functions
from mlc_compile.passes.values import Array, array_of, behind, tidied

# A constant is stored in the library, so folding may not make more of them than this, unless
# it was made of as many.
MOST_BYTES: Final = 4096


@module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """Replace each call whose arguments are constants by its result."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return tidied(mod, fuse_functions(mod, _Folder))


@mutator
class _Folder(Fuser):
    step: ClassVar[str] = "FoldConstants"

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        var = super().visit_dataflow_var_(var)
        seen = behind(var, self.builder_)
        return var if array_of(seen) is None else seen

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        arrays = self._constants(call)
        if arrays is None:
            return call
        name = str(call.op.name)
        reason = _refusal(call, arrays)
        if reason is not None:
            self.refused(name, reason)
            return call
        with np.errstate(all="ignore"):  # overflow and NaN are results like any other
            result = EXACT[name](call, arrays)
        self.done(name)
        dtype = str(call.ty.dtype)
        return relax.const(np.array(result, dtype, order="C"), dtype)  # unasked, float64 narrows

    def _constants(self, call: relax.Call) -> list[Array] | None:
        """The arguments' numbers, if all but shapes are constants and there is one at least."""
        if not isinstance(call.op, Op) or not isinstance(call.ty, relax.TensorType):
            return None
        seen = [behind(a, self.builder_) for a in call.args]
        seen = [part for s in seen for part in (s.fields if isinstance(s, relax.Tuple) else [s])]
        seen = [behind(s, self.builder_) for s in seen if not isinstance(s, relax.ShapeExpr)]
        arrays = [array for s in seen if (array := array_of(s)) is not None]
        return arrays if arrays and len(arrays) == len(seen) else None


def _refusal(call: relax.Call, arrays: Sequence[Array]) -> str | None:
    """Why a call of constants is left to the target."""
    dtypes = {str(a.dtype) for a in arrays} | {str(call.ty.dtype)}
    shape = call.ty.shape.values if isinstance(call.ty.shape, relax.ShapeExpr) else [None]
    if str(call.op.name) not in EXACT or not dtypes <= TYPES:
        return "numpy and the target may differ in the last bit"
    if not all(isinstance(size, IntImm) for size in shape):
        return "its size is not known"
    nbytes = prod(map(int, shape)) * np.dtype(str(call.ty.dtype)).itemsize
    if nbytes > max(MOST_BYTES, sum(a.nbytes for a in arrays)):
        return f"it would store {nbytes} bytes"
    return _undefined(call, arrays)


def _undefined(call: relax.Call, arrays: Sequence[Array]) -> str | None:
    """Why a target may compute anything at all, if so."""
    name, last = str(call.op.name), str(call.ty.dtype)
    if NUMBERS[last].kind != "integer":
        return None
    if name == "relax.divide":
        return "integer division may meet a zero"
    info = np.iinfo(last)
    if name == "relax.astype" and arrays[0].dtype.kind == "f" and arrays[0].size:
        # NaN compares false. 2**63 - 1 is no float64, so the upper bound excludes its neighbor.
        whole = np.trunc(arrays[0].astype(np.float64))
        if not np.all((whole >= info.min) & (whole < float(info.max) + 1)):
            return f"a value is no {last}"
    return None


def _shape(call: relax.Call) -> list[int]:
    return [int(size) for size in call.ty.shape.values]


def _axes(call: relax.Call) -> list[int] | None:
    axes = call.attrs.axes
    return None if axes is None else [int(a) for a in axes]


def _axis(call: relax.Call) -> int | None:
    axis = call.attrs.axis
    return None if axis is None else int(axis)


# Numpy has no arithmetic of its own for bfloat16, and another one for bool.
TYPES: Final = frozenset(NUMBERS) - {"bfloat16", "bool"}

# Comparisons, min and max are not here: targets differ about NaN.
EXACT: Final[Mapping[str, Callable[[relax.Call, Sequence[Array]], Array]]] = {
    "relax.add": lambda _, a: np.add(*a),
    "relax.subtract": lambda _, a: np.subtract(*a),
    "relax.multiply": lambda _, a: np.multiply(*a),
    "relax.divide": lambda _, a: np.divide(*a),
    "relax.sqrt": lambda _, a: np.sqrt(a[0]),
    "relax.negative": lambda _, a: np.negative(a[0]),
    "relax.abs": lambda _, a: np.abs(a[0]),
    "relax.astype": lambda call, a: a[0].astype(str(call.ty.dtype)),
    "relax.reshape": lambda call, a: a[0].reshape(_shape(call)),
    "relax.permute_dims": lambda call, a: a[0].transpose(_axes(call)),
    "relax.broadcast_to": lambda call, a: np.broadcast_to(a[0], _shape(call)),
    "relax.concat": lambda call, a: np.concatenate(a, _axis(call)),
}
