"""What a pass can know of a value at compile time: the call behind a variable, and constants."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst

from mlc_compile.passes import events
from mlc_compile.passes.rewrite import stays_usable

Array = npt.NDArray[np.generic]

# Operators that fill a tensor with one number -> the number, or None for the second argument.
FILLS: Final[Mapping[str, int | None]] = {"relax.zeros": 0, "relax.ones": 1, "relax.full": None}


def behind(expr: relax.Expr, builder: relax.BlockBuilder) -> relax.Expr:
    """`expr`, or what it was bound to while `builder` rebuilt the function, if usable here."""
    seen = expr
    while isinstance(seen, relax.Var):
        bound = builder.lookup_binding(seen)
        if bound is None or not stays_usable(seen, bound):
            return seen
        seen = bound
    return seen


def array_of(expr: relax.Expr) -> Array | None:
    """The numbers of a constant; None for any other expression."""
    if not isinstance(expr, GenericConst):
        return None
    array: Array = expr.value.numpy()
    return array


def filling(expr: relax.Expr) -> Array | None:
    """The numbers in a constant, or the one that an operator fills a tensor with."""
    array = array_of(expr)
    if array is not None or not isinstance(expr, relax.Call):
        return array
    name = str(getattr(expr.op, "name", ""))
    if name not in FILLS:
        return None
    number = FILLS[name]
    return array_of(expr.args[1]) if number is None else np.array(number, str(expr.ty.dtype))


def tidied(before: IRModule, after: IRModule) -> IRModule:
    """`after` without the renamings y = x that a rewrite leaves; as it is if it equals `before`."""
    plain = (mod.without_attr(events.ATTRIBUTE) for mod in (before, after))
    if tvm_ffi.structural_equal(*plain):
        return after
    return relax.transform.CanonicalizeBindings()(after)
