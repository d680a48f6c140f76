"""Expressions: which rule makes the value of a TIR node, by its class."""

from collections.abc import Callable, Mapping
from typing import Final

import tvm
from tvm import tirx
from tvm.runtime import Object as Node

from . import arithmetic, branches, calls, casts, memory
from .dtypes import BOOL, Value
from .opcodes import Op
from .state import Kernel
from .walk import key_of

SMALLEST, LARGEST = -(2**31), 2**31 - 1


def evaluate(k: Kernel, node: Node) -> Value:
    """The value of an expression; one without loads is not computed twice."""
    key = key_of(node)
    known = k.body.recall(key)
    if known is not None:
        return known
    make = RULES.get(type(node))
    if make is None:
        raise k.refuse(node, "no rule makes a value of it")
    effects = k.body.effects
    value = make(k, node)
    if k.body.effects == effects:
        k.body.remember(key, value)
    return value


def _number(k: Kernel, node: Node) -> Value:
    type_, value = k.type_of(node), node.value
    if type_.bits == 64 and not SMALLEST <= value <= LARGEST:
        raise k.refuse(node, "it needs 64-bit integers, which these devices need not have")
    return k.body.constant(type_, value)


def _variable(k: Kernel, node: Node) -> Value:
    value = k.variables.get(key_of(node))
    if value is None:
        raise k.refuse(node, "nothing was bound to it before")
    return value


def _not(k: Kernel, node: tirx.Not) -> Value:
    value = k.value(node.a)
    return k.body.op(Op.LogicalNot, value.type, value)


def _complement(k: Kernel, node: tirx.BitwiseNot) -> Value:
    value = k.value(node.a)
    if value.type == BOOL.of(value.type.lanes):
        return k.body.op(Op.LogicalNot, value.type, value)
    return arithmetic.wrap(k, k.body.op(Op.Not, value.type, value))


def _cast(k: Kernel, node: tirx.Cast) -> Value:
    return casts.cast(k, k.value(node.value), k.type_of(node))


def _ramp(k: Kernel, node: tirx.Ramp) -> Value:
    base, stride = k.value(node.base), k.value(node.stride)
    type_, add = base.type, tirx.Add
    lanes = [base]
    for i in range(1, k.type_of(node).lanes):
        step = arithmetic.combine(k, node, tirx.Mul, stride, k.body.constant(type_, i))
        lanes.append(arithmetic.combine(k, node, add, base, step))
    return k.body.join(lanes)


def _broadcast(k: Kernel, node: tirx.Broadcast) -> Value:
    return k.body.splat(k.value(node.value), k.type_of(node).lanes)


def _shuffle(k: Kernel, node: tirx.Shuffle) -> Value:
    vectors = [k.value(vector) for vector in node.vectors]
    places = [(vector, i) for vector in vectors for i in range(vector.type.lanes)]
    wanted = [places[index.value] for index in node.indices]
    return k.body.join([k.body.lane(vector, i) for vector, i in wanted])


def _let(k: Kernel, node: tirx.Let) -> Value:
    k.bind(node.var, k.value(node.value))
    return k.value(node.body)


Rule = Callable[[Kernel, Node], Value]

RULES: Final[Mapping[type, Rule]] = {
    **arithmetic.RULES,
    tirx.IntImm: _number,
    tirx.FloatImm: _number,
    tirx.Var: _variable,
    tirx.Not: _not,
    tirx.BitwiseNot: _complement,
    tirx.And: branches.both,
    tirx.Or: branches.either,
    tirx.Select: branches.select,
    tirx.Cast: _cast,
    tirx.Ramp: _ramp,
    tirx.Broadcast: _broadcast,
    tirx.Shuffle: _shuffle,
    tirx.Let: _let,
    tvm.ir.TensorLoad: memory.load,
    tvm.ir.Call: calls.call,
}
