"""Shuffles: a value of another thread of the subgroup.

`width` threads, a power of two, shuffle among themselves: a subgroup may be larger. All go
through one instruction with an absolute lane, so that the three that Vulkan splits off
(relative shuffles, clusters) need not be there. What comes from outside the width is the
thread's own value.
"""

from collections.abc import Callable
from typing import Final

import tvm
from tvm.ir import Call

from . import casts
from . import declarations as d
from .dtypes import BOOL, FLOAT32, UINT32, Value
from .enumerants import BuiltIn, Capability, Scope
from .interface import builtin_value
from .opcodes import Op
from .refusal import beyond_row
from .state import Kernel

Binary = Callable[[Op, Value, Value], Value]

RESULTS: Final = {Op.UGreaterThanEqual: BOOL, Op.ULessThanEqual: BOOL}  # of others: uint32


def active_mask(k: Kernel, _node: Call) -> Value:
    """All threads: shuffles need no mask, and nothing else asks for it."""
    return k.body.constant(UINT32, 0xFFFFFFFF)


def shuffle(k: Kernel, node: Call) -> Value:
    """The value of lane `args[2]` of the width."""

    def source(op: Binary, lane: Value, last: Value, given: Value) -> Value:
        base = op(Op.BitwiseAnd, lane, _complement(k, last))
        return op(Op.BitwiseOr, base, op(Op.BitwiseAnd, given, last))

    return _shuffle(k, node, source)


def shuffle_up(k: Kernel, node: Call) -> Value:
    """The value of `args[2]` lanes before."""

    def source(op: Binary, lane: Value, last: Value, given: Value) -> Value:
        inside = op(Op.UGreaterThanEqual, op(Op.BitwiseAnd, lane, last), given)
        return k.body.op(Op.Select, UINT32, inside, op(Op.ISub, lane, given), lane)

    return _shuffle(k, node, source)


def shuffle_down(k: Kernel, node: Call) -> Value:
    """The value of `args[2]` lanes after."""

    def source(op: Binary, lane: Value, last: Value, given: Value) -> Value:
        beyond = op(Op.IAdd, op(Op.BitwiseAnd, lane, last), given)
        inside = op(Op.ULessThanEqual, beyond, last)
        return k.body.op(Op.Select, UINT32, inside, op(Op.IAdd, lane, given), lane)

    return _shuffle(k, node, source)


def shuffle_xor(k: Kernel, node: Call) -> Value:
    """The value of the lane whose number differs in the bits of `args[2]`."""

    def source(op: Binary, lane: Value, last: Value, given: Value) -> Value:
        inside = op(Op.ULessThanEqual, given, last)
        return k.body.op(Op.Select, UINT32, inside, op(Op.BitwiseXor, lane, given), lane)

    return _shuffle(k, node, source)


Source = Callable[[Binary, Value, Value, Value], Value]


def _shuffle(k: Kernel, node: Call, source: Source) -> Value:
    _, value, given, width, _ = node.args
    lanes = _width(k, node, width)
    own = builtin_value(k, BuiltIn.SubgroupLocalInvocationId, UINT32)
    last = k.body.constant(UINT32, lanes - 1)
    operand = casts.cast(k, k.value(given), UINT32)
    return _taken(k, k.value(value), source(_binary(k), own, last, operand))


def _width(k: Kernel, node: Call, width: object) -> int:
    lanes = width.value if isinstance(width, tvm.tirx.IntImm) else 0
    if lanes < 1 or lanes & (lanes - 1):
        raise k.refuse(node, "its width is no constant power of two")
    if lanes > k.device.subgroup:
        need = f"subgroups of {lanes} threads"
        raise beyond_row(k.name, node, need, "subgroup", k.device.subgroup)
    k.module.capabilities |= {Capability.GroupNonUniform, Capability.GroupNonUniformShuffle}
    return lanes


def _taken(k: Kernel, value: Value, lane: Value) -> Value:
    """What that lane has. Only 32-bit types are shuffled everywhere: float16 goes as float32."""
    if value.type.half:
        wide = casts.cast(k, value, FLOAT32.of(value.type.lanes))
        return casts.cast(k, _taken(k, wide, lane), value.type)
    scope = d.word(k.module, Scope.Subgroup)
    k.body.effects += 1
    ids = [
        k.body.impure(Op.GroupNonUniformShuffle, k.body.held(value.type, n), scope, id_, *lane.ids)
        for n, id_ in zip(value.type.chunks, value.ids, strict=True)
    ]
    return Value(value.type, tuple(ids))


def _binary(k: Kernel) -> Binary:
    def op(op: Op, a: Value, b: Value) -> Value:
        return k.body.op(op, RESULTS.get(op, UINT32), a, b)

    return op


def _complement(k: Kernel, value: Value) -> Value:
    return k.body.op(Op.Not, UINT32, value)
