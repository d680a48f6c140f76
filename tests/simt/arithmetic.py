"""Pure operators: what each computes on numpy arrays, by node class and by operator name.

numpy keeps the operands' type, so float16 and float32 round at every step as on the device,
and integers wrap.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from tvm import tirx

Array = np.ndarray
Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]


def truncated_div(a: Array, b: Array) -> Array:
    """C division: integers round towards zero."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    return 1 / (1 + np.exp(-x))


def round_half_away(x: Array) -> Array:
    """C `round`: halves go away from zero."""
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


def erf(x: Array) -> Array:
    """The error function, computed in float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once (but for float64)."""
    wide = np.float64
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(c.dtype)


def count_leading_zeros(x: Array) -> Array:
    """Zero bits above the highest one bit, as int32."""
    bits = 8 * x.dtype.itemsize
    unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    used = np.zeros(x.shape, np.int32)
    for bit in range(bits):
        used = np.where(unsigned >> np.array(bit, unsigned.dtype) != 0, bit + 1, used)
    return (bits - used).astype(np.int32)


def c_abs(x: Array) -> Array:
    """|x|."""
    return np.abs(x)


INTEGER_DIVISIONS: Final = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

BINARY: Final[Mapping[type, Binary]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Div: truncated_div,
    tirx.Mod: np.fmod,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.remainder,
    tirx.Min: np.fmin,
    tirx.Max: np.fmax,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
}

UNARY: Final[Mapping[type, Unary]] = {
    tirx.Not: np.logical_not,
    tirx.BitwiseNot: np.invert,
}

# Calls whose result has the type of the call, by the operator's name without `tirx.`.
MATH: Final[Mapping[str, Callable[..., Array]]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "erf": erf,
    "sigmoid": sigmoid,
    "pow": np.power,
    "fabs": c_abs,
    "abs": c_abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": round_half_away,
    "nearbyint": np.rint,
    "fma": fma,
    "fmod": np.fmod,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "popcount": np.bitwise_count,
    "clz": count_leading_zeros,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "likely": lambda x: x,
    "tvm_thread_invariant": lambda x: x,
}
