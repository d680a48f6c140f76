"""Expressions that choose: an instruction where both sides may be computed, else branches.

A load that a condition guards must not be made where it does not hold, and a division by what
may be zero neither: such a side gets a block of its own, and a phi joins the values.
"""

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.runtime import Object as Node

from .dtypes import BOOL, Value
from .enumerants import NO_CONTROL
from .opcodes import Op
from .state import Kernel
from .walk import children, key_of

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def select(k: Kernel, node: tirx.Select) -> Value:
    """Both sides may be computed, says TIR; one that loads is not if a single truth chooses."""
    return _chosen(k, node.condition, node.true_value, node.false_value)


def if_then_else(k: Kernel, node: tvm.ir.Call) -> Value:
    """The side that the condition names; only that one is computed if it matters."""
    condition, yes, no = node.args
    if k.type_of(condition).lanes > 1 and (guarded(k, yes) or guarded(k, no)):
        raise k.refuse(node, "a vector of conditions guards loads or divisions")
    return _chosen(k, condition, yes, no)


def both(k: Kernel, node: tirx.And) -> Value:
    """And; what the first part guards is not computed where that is false."""
    return _shortcut(k, node, Op.LogicalAnd, otherwise=False)


def either(k: Kernel, node: tirx.Or) -> Value:
    """Or; the second part is not computed where the first is true, if it matters."""
    return _shortcut(k, node, Op.LogicalOr, otherwise=True)


def guarded(k: Kernel, node: Node) -> bool:
    """Whether an expression does what a condition may have to prevent."""
    known = k.guarded.get(key_of(node))
    if known is None:
        known = _risky(node) or any(guarded(k, child) for child in children(node))
        k.guarded[key_of(node)] = known
    return known


def _risky(node: Node) -> bool:
    if isinstance(node, tvm.ir.TensorLoad):
        return True
    return isinstance(node, DIVISIONS) and not isinstance(node.b, (tirx.IntImm, tirx.FloatImm))


def _chosen(k: Kernel, condition: Node, yes: Node, no: Node) -> Value:
    chosen = k.value(condition)
    if chosen.type.lanes == 1 and (guarded(k, yes) or guarded(k, no)):
        return branch(k, chosen, lambda: k.value(yes), lambda: k.value(no))
    a, b = k.value(yes), k.value(no)
    if chosen.type.lanes != a.type.lanes:
        chosen = k.body.splat(chosen, a.type.lanes)
    return k.body.op(Op.Select, a.type, chosen, a, b)


def _shortcut(k: Kernel, node: Node, op: Op, *, otherwise: bool) -> Value:
    a = k.value(node.a)
    if not guarded(k, node.b):
        return k.body.op(op, a.type, a, k.value(node.b))
    if a.type.lanes > 1:
        raise k.refuse(node, "a vector of conditions guards loads or divisions")
    known = k.body.constant(BOOL, otherwise)

    def second() -> Value:
        return k.value(node.b)

    def first() -> Value:
        return known

    return branch(k, a, first, second) if otherwise else branch(k, a, second, first)


def branch(k: Kernel, condition: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
    """The value of one of two computations, each in a block of its own."""
    fresh, body = k.module.fresh, k.body
    then, other, merge = fresh(), fresh(), fresh()
    body.act(Op.SelectionMerge, merge, NO_CONTROL)
    body.act(Op.BranchConditional, condition.ids[0], then, other)
    a, after_a = _arm(k, then, merge, yes)
    b, after_b = _arm(k, other, merge, no)
    body.open_block(merge)
    body.use(a.type)
    chunks = zip(a.type.chunks, a.ids, b.ids, strict=True)
    ids = [
        body.impure(Op.Phi, body.held(a.type, lanes), x, after_a, y, after_b)
        for lanes, x, y in chunks
    ]
    return Value(a.type, tuple(ids))


def _arm(k: Kernel, label: int, merge: int, compute: Callable[[], Value]) -> tuple[Value, int]:
    """A value, and the block at whose end it is there."""
    with k.body.scope():
        k.body.open_block(label)
        value = compute()
        end = k.body.label
        k.body.act(Op.Branch, merge)
    return value, end
