"""Conversions between types: of numbers, and of bits.

As in C, a float becomes an integer by losing its fraction; one that does not fit means
nothing. What is not zero is true. Whether float32 rounds to the nearest float16 or toward zero,
and whether a subnormal number is kept or counts as zero, is the device's choice, as Vulkan
leaves it.
"""

from collections.abc import Mapping
from typing import Final

from tvm.runtime import Object as Node

from .arithmetic import wrap
from .dtypes import BOOL, FLOAT16, INT32, UINT32, WORD, Type, Value
from .opcodes import Op
from .state import Kernel

# (from, to) where both are numbers of different kind.
CONVERSIONS: Final[Mapping[tuple[str, str], Op]] = {
    ("float", "float"): Op.FConvert,
    ("float", "int"): Op.ConvertFToS,
    ("float", "uint"): Op.ConvertFToU,
    ("int", "float"): Op.ConvertSToF,
    ("uint", "float"): Op.ConvertUToF,
}


def cast(k: Kernel, value: Value, to: Type) -> Value:
    """The same numbers in another type of as many lanes."""
    given = value.type
    if (given.kind, given.bits) == (to.kind, to.bits):
        return Value(to, value.ids)
    if given.kind == "bool":
        return k.body.op(Op.Select, to, value, k.body.constant(to, 1), k.body.constant(to, 0))
    if to.kind == "bool":
        zero = k.body.constant(given, 0)
        unequal = Op.FUnordNotEqual if given.kind == "float" else Op.INotEqual
        return k.body.op(unequal, to, value, zero)
    if given.integer and to.integer:
        return wrap(k, Value(to, value.ids))
    return _convert(k, value, to)


def _convert(k: Kernel, value: Value, to: Type) -> Value:
    if to.narrow:  # int32 holds every narrow integer, and -1 becomes 255 as on other devices
        return wrap(k, Value(to, k.body.op(Op.ConvertFToS, INT32.of(to.lanes), value).ids))
    return k.body.op(CONVERSIONS[value.type.kind, to.kind], to, value)


def reinterpret(k: Kernel, node: Node, value: Value, to: Type) -> Value:
    """The same bits as other numbers; lane 0 has the lowest."""
    given = value.type
    if BOOL.kind in (given.kind, to.kind) or 64 in (given.bits, to.bits):
        raise k.refuse(node, f"{given} is not kept by its bits, or {to} is not")
    if given.bits * given.lanes != to.bits * to.lanes:
        raise k.refuse(node, f"{given} and {to} have not the same size")
    if given.bits == to.bits == WORD:
        same = given.kind == to.kind or (given.integer and to.integer)
        return Value(to, value.ids) if same else k.body.op(Op.Bitcast, to, value)
    if given.integer and to.integer and given.bits == to.bits:
        return wrap(k, Value(to, value.ids))
    return _from_words(k, _to_words(k, value), to)


def _to_words(k: Kernel, value: Value) -> list[Value]:
    """All bits of a value in 32-bit words; zeros fill up the last."""
    per_word = WORD // value.type.bits
    lanes = k.body.lanes(value)
    groups = [lanes[i : i + per_word] for i in range(0, len(lanes), per_word)]
    return [_word(k, group) for group in groups]


def _word(k: Kernel, lanes: list[Value]) -> Value:
    type_ = lanes[0].type
    if type_.bits == WORD:
        return reinterpret(k, "a word", lanes[0], UINT32)
    if type_.half:
        pair = [*lanes, k.body.constant(FLOAT16, 0)][:2]
        joined = k.body.join(pair)
        return Value(UINT32, (k.body.pure(Op.Bitcast, k.body.held(UINT32), joined.ids),))
    unsigned = Type("uint", type_.bits)
    parts = [wrap(k, Value(unsigned, lane.ids)) for lane in lanes]
    whole = Value(UINT32, parts[0].ids)
    for i, part in enumerate(parts[1:], start=1):
        distance = k.body.constant(UINT32, i * type_.bits)
        shifted = k.body.op(Op.ShiftLeftLogical, UINT32, Value(UINT32, part.ids), distance)
        whole = k.body.op(Op.BitwiseOr, UINT32, whole, shifted)
    return whole


def _from_words(k: Kernel, words: list[Value], to: Type) -> Value:
    lanes = [lane for word in words for lane in _parts(k, word, to.scalar)]
    return k.body.join(lanes[: to.lanes])


def _parts(k: Kernel, word: Value, type_: Type) -> list[Value]:
    """A word as the numbers of `type_` in it."""
    if type_.bits == WORD:
        return [reinterpret(k, "a word", word, type_)]
    if type_.half:
        pair = FLOAT16.of(2)
        vector = k.body.pure(Op.Bitcast, k.body.held(pair), word.ids)
        return k.body.lanes(Value(pair, (vector,)))
    shifts = [k.body.constant(UINT32, i) for i in range(0, WORD, type_.bits)]
    moved = [k.body.op(Op.ShiftRightLogical, UINT32, word, by) for by in shifts]
    return [wrap(k, Value(type_, lane.ids)) for lane in moved]
