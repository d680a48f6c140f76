"""TVM types as numpy types, and the conversions between values.

A value of one lane is an array [threads]; a vector of n lanes is [n, threads]. Where all
threads agree, the last axis may be 1.
"""

import functools
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tvm

from .errors import Unsupported

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar numpy type and how many of them make one value."""

    dtype: np.dtype
    lanes: int


def type_of(node: object) -> Type:
    """The type of an expression, a variable or a buffer's element."""
    ty = node.ty
    if not isinstance(ty, tvm.ir.PrimType):
        raise Unsupported(f"{node} has no scalar or vector type but {ty}")
    return parse(str(ty.dtype))


@functools.cache
def parse(name: str) -> Type:
    """`float16x4` -> four float16."""
    scalar, lanes = re.fullmatch(r"(.+?)(?:x(\d+))?", name).groups()
    known = getattr(np, scalar, None) or getattr(ml_dtypes, scalar, None)
    if known is None:
        raise Unsupported(f"no numpy type for {name}")
    return Type(np.dtype(known), int(lanes or 1))


def constant(value: float, dtype: np.dtype) -> Array:
    """A value all threads share, [1]; it must not be written to."""
    array = np.array([value]).astype(dtype)
    array.flags.writeable = False
    return array


def cast(value: Array, dtype: np.dtype) -> Array:
    """C conversion: floats truncate towards zero, everything nonzero is true."""
    return value.astype(dtype)


def reinterpret(value: Array, to: Type) -> Array:
    """The same bits as other numbers: u32 [threads] -> f16x2 [2, threads], lowest bits first."""
    rows = np.atleast_2d(value)  # [lanes, threads]
    bits = np.ascontiguousarray(rows.T).view(to.dtype)  # [threads, lanes]
    return bits[:, 0] if to.lanes == 1 else bits.T
