"""Compile expressions to closures over a frame, by node class and by the operator called."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import tvm
from tvm import tirx

from . import intrinsics
from .arithmetic import BINARY, INTEGER_DIVISIONS, MATH, UNARY
from .dtypes import cast, constant, type_of
from .errors import DivisionByZero, Unsupported
from .frame import Frame
from .memory import complain
from .plan import Array, Buffer, Eval, Plan, key_of

Expr = object


def compile_expr(node: Expr, plan: Plan) -> Eval:
    """A function that computes `node` for all lanes of a frame."""
    make = NODES.get(type(node))
    if make is None:
        raise Unsupported(f"{plan.name}: no rule for expression {type(node).__name__}: {node}")
    return make(node, plan)


def compile_index(buffer: Buffer, indices: list[Expr], plan: Plan) -> Eval:
    """The place of an access in scalars of the buffer's element."""
    if len(indices) != 1:
        raise Unsupported(f"{plan.name}: {buffer.name} has {len(indices)} indices, not one")
    index = compile_expr(indices[0], plan)
    lanes = buffer.type.lanes
    if lanes == 1:
        return index

    def spread(frame: Frame) -> Array:
        first = np.atleast_2d(index(frame)) * lanes  # [n, threads]
        whole = first[:, None] + np.arange(lanes, dtype=first.dtype)[:, None]
        return whole.reshape(-1, whole.shape[-1])

    return spread


def _immediate(node: Expr, _plan: Plan) -> Eval:
    value = constant(node.value, type_of(node).dtype)
    return lambda _frame: value


def _variable(node: tirx.Var, _plan: Plan) -> Eval:
    key = key_of(node)
    return lambda frame: frame.values[key]


def _binary(node: Expr, plan: Plan) -> Eval:
    function = BINARY[type(node)]
    a, b = compile_expr(node.a, plan), compile_expr(node.b, plan)
    risky = isinstance(node, INTEGER_DIVISIONS) and type_of(node).dtype.kind in "iu"
    if risky and not isinstance(node.b, tirx.IntImm):
        b = _nonzero(b)
    return lambda frame: function(a(frame), b(frame))


def _nonzero(divisor: Eval) -> Eval:
    """The divisor, refused where it is zero in an active lane, else replaced by one there."""

    def run(frame: Frame) -> Array:
        value = divisor(frame)
        zero = value == 0
        if not zero.any():
            return value
        bad = frame.active.select(zero)
        if bad.any():
            lane = int(bad.argmax()) % bad.shape[-1]
            complain(DivisionByZero, frame.active, lane, "divides an integer by zero")
        return np.where(zero, value.dtype.type(1), value)

    return run


def _unary(node: Expr, plan: Plan) -> Eval:
    function, a = UNARY[type(node)], compile_expr(node.a, plan)
    return lambda frame: function(a(frame))


def _both(node: tirx.And, plan: Plan) -> Eval:
    a, b = compile_expr(node.a, plan), compile_expr(node.b, plan)

    def run(frame: Frame) -> Array:
        left = a(frame)
        return left & intrinsics.where_active(frame, left, b, left)

    return run


def _either(node: tirx.Or, plan: Plan) -> Eval:
    a, b = compile_expr(node.a, plan), compile_expr(node.b, plan)

    def run(frame: Frame) -> Array:
        left = a(frame)
        return left | intrinsics.where_active(frame, ~left, b, left)

    return run


def _select(node: tirx.Select, plan: Plan) -> Eval:
    parts = [compile_expr(e, plan) for e in (node.condition, node.true_value, node.false_value)]
    return lambda frame: np.where(*[part(frame) for part in parts])


def _cast(node: tirx.Cast, plan: Plan) -> Eval:
    value, dtype = compile_expr(node.value, plan), type_of(node).dtype
    return lambda frame: cast(value(frame), dtype)


def _ramp(node: tirx.Ramp, plan: Plan) -> Eval:
    base, stride = compile_expr(node.base, plan), compile_expr(node.stride, plan)
    steps = np.arange(node.lanes.value, dtype=type_of(node).dtype)[:, None]
    return lambda frame: base(frame) + stride(frame) * steps


def _broadcast(node: tirx.Broadcast, plan: Plan) -> Eval:
    value, lanes = compile_expr(node.value, plan), node.lanes.value

    def run(frame: Frame) -> Array:
        one = value(frame)
        return np.broadcast_to(one, (lanes, one.shape[-1]))

    return run


def _shuffle(node: tirx.Shuffle, plan: Plan) -> Eval:
    vectors = [compile_expr(v, plan) for v in node.vectors]
    wanted = [i.value for i in node.indices]

    def run(frame: Frame) -> Array:
        rows = [np.atleast_2d(v(frame)) for v in vectors]
        width = max(r.shape[-1] for r in rows)
        wide = [np.broadcast_to(r, (len(r), width)) for r in rows]
        whole = wide[0] if len(wide) == 1 else np.concatenate(wide)
        return whole[wanted[0]] if len(wanted) == 1 else whole[wanted]

    return run


def _let(node: tirx.Let, plan: Plan) -> Eval:
    key, value = key_of(node.var), compile_expr(node.value, plan)
    body = compile_expr(node.body, plan)

    def run(frame: Frame) -> Array:
        frame.values[key] = own(value(frame))
        return body(frame)

    return run


def own(value: Array) -> Array:
    """A value that a later store cannot change: loads of local memory are views."""
    return value if value.base is None else value.copy()


def _load(node: tvm.ir.TensorLoad, plan: Plan) -> Eval:
    buffer = plan.buffer(node.source)
    plan.usage.touched.add(buffer.root)
    index, key = compile_index(buffer, list(node.indices), plan), buffer.key
    return lambda frame: frame.views[key].load(frame.active, index(frame))


def _call(node: tvm.ir.Call, plan: Plan) -> Eval:
    name = node.op.name.partition(".")[2]  # "tirx.exp" or "prim.exp"
    special = intrinsics.CALLS.get(name)
    if special is not None:
        return special(node, plan, compile_expr)
    function = MATH.get(name)
    if function is None:
        raise Unsupported(f"{plan.name}: no rule for operator {node.op.name}")
    dtype = type_of(node).dtype
    args = [compile_expr(a, plan) for a in node.args]
    return lambda frame: function(*[a(frame) for a in args]).astype(dtype, copy=False)


NODES: Final[Mapping[type, Callable[[Expr, Plan], Eval]]] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(UNARY, _unary),
    tirx.IntImm: _immediate,
    tirx.FloatImm: _immediate,
    tirx.Var: _variable,
    tirx.And: _both,
    tirx.Or: _either,
    tirx.Select: _select,
    tirx.Cast: _cast,
    tirx.Ramp: _ramp,
    tirx.Broadcast: _broadcast,
    tirx.Shuffle: _shuffle,
    tirx.Let: _let,
    tvm.ir.TensorLoad: _load,
    tvm.ir.Call: _call,
}
