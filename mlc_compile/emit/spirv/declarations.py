"""Types and constants in a module, each declared once."""

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from .dtypes import UINT32, WORD, Type, Value
from .enumerants import StorageClass
from .module import Module
from .opcodes import Op

FLOATS: Final[Mapping[int, type[np.floating[Any]]]] = {16: np.float16, 32: np.float32}


def held(module: Module, type_: Type, lanes: int) -> int:
    """The type of a chunk while it is computed with."""
    return _vector(module, _scalar(module, type_.kind, type_.held_bits), lanes)


def stored(module: Module, type_: Type, lanes: int) -> int:
    """The type of a chunk in a buffer, where integers are as narrow as they say."""
    kind = "uint" if type_.kind == "bool" else type_.kind
    return _vector(module, _scalar(module, kind, type_.stored_bits), lanes)


def pointer(module: Module, storage: StorageClass, to: int) -> int:
    """The type of pointers to a type."""
    return module.declare_type(Op.TypePointer, storage, to)


def constant(module: Module, type_: Type, value: float) -> Value:
    """The same number in every lane. An integer must fit its type."""
    one = _constant(module, type_, value)
    return Value(type_, tuple(_replicated(module, type_, one, n) for n in type_.chunks))


def word(module: Module, value: int) -> int:
    """The id of an unsigned 32-bit number."""
    return _constant(module, UINT32, value)


def _constant(module: Module, type_: Type, value: float) -> int:
    type_id = held(module, type_, 1)
    if type_.kind == "bool":
        return module.declare(Op.ConstantTrue if value else Op.ConstantFalse, type_id)
    return module.declare(Op.Constant, type_id, _bits(type_, value))


def _bits(type_: Type, value: float) -> int:
    """The word of a constant; a float's are exact, subnormals, infinities and NaN included."""
    if type_.kind != "float":
        return int(value) & ((1 << WORD) - 1)
    with np.errstate(over="ignore"):
        raw = FLOATS[type_.bits](value).tobytes()
    (bits,) = struct.unpack("<I", raw.ljust(4, b"\0"))
    return int(bits)


def _replicated(module: Module, type_: Type, one: int, lanes: int) -> int:
    if lanes == 1:
        return one
    return module.declare(Op.ConstantComposite, held(module, type_, lanes), *[one] * lanes)


def _scalar(module: Module, kind: str, bits: int) -> int:
    if kind == "bool":
        return module.declare_type(Op.TypeBool)
    if kind == "float":
        return module.declare_type(Op.TypeFloat, bits)
    return module.declare_type(Op.TypeInt, bits, 0)


def _vector(module: Module, scalar: int, lanes: int) -> int:
    return scalar if lanes == 1 else module.declare_type(Op.TypeVector, scalar, lanes)
