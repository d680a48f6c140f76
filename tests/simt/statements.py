"""Compile statements to closures over a frame, by node class; host and kernels alike."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from tvm import tirx

from .dtypes import type_of
from .errors import HostAssertion, Unsupported
from .expressions import compile_expr, compile_index, own
from .frame import Active, Frame
from .launch import bind, compile_launch
from .memory import FlatMemory, LocalView
from .plan import Array, Buffer, Exec, Plan, key_of

Stmt = object


def compile_stmt(node: Stmt, plan: Plan) -> Exec:
    """A function that executes `node` in a frame."""
    make = NODES.get(type(node))
    if make is None:
        raise Unsupported(f"{plan.name}: no rule for statement {type(node).__name__}")
    return make(node, plan)


def _sequence(node: tirx.SeqStmt, plan: Plan) -> Exec:
    steps = [compile_stmt(s, plan) for s in node.seq]

    def run(frame: Frame) -> None:
        for step in steps:
            step(frame)

    return run


def _bind(node: tirx.Bind, plan: Plan) -> Exec:
    key, value = key_of(node.var), compile_expr(node.value, plan)

    def run(frame: Frame) -> None:
        frame.values[key] = own(value(frame))

    return run


def _evaluate(node: tirx.Evaluate, plan: Plan) -> Exec:
    return compile_expr(node.value, plan)


def _store(node: tirx.BufferStore, plan: Plan) -> Exec:
    buffer = plan.buffer(node.buffer)
    plan.usage.touched.add(buffer.root)
    plan.usage.written.add(buffer.root)
    index, key = compile_index(buffer, list(node.indices), plan), buffer.key
    value = compile_expr(node.value, plan)

    def run(frame: Frame) -> None:
        frame.views[key].store(frame.active, index(frame), value(frame))

    return run


def _if(node: tirx.IfThenElse, plan: Plan) -> Exec:
    condition = compile_expr(node.condition, plan)
    yes = compile_stmt(node.then_case, plan)
    no = compile_stmt(node.else_case, plan) if node.else_case is not None else None

    def run(frame: Frame) -> None:
        chosen = condition(frame)
        _run_where(frame, chosen, yes)
        if no is not None:
            _run_where(frame, ~chosen, no)

    return run


def _run_where(frame: Frame, condition: Array, body: Exec) -> None:
    narrowed = frame.active.narrow(condition)
    if narrowed is not None:
        with frame.only(narrowed):
            body(frame)


def _for(node: tirx.For, plan: Plan) -> Exec:
    key, dtype = key_of(node.loop_var), type_of(node.loop_var).dtype
    start, extent = compile_expr(node.min, plan), compile_expr(node.extent, plan)
    step = 1 if node.step is None else node.step.value
    body = compile_stmt(node.body, plan)

    def run(frame: Frame) -> None:
        first, count = start(frame), extent(frame)
        longest = int(frame.active.select(count).max())
        for i in range(0, longest, step):
            frame.values[key] = (first + np.array([i])).astype(dtype)
            if count.shape == (1,):
                body(frame)
            else:
                _run_where(frame, i < count, body)

    return run


def _while(node: tirx.While, plan: Plan) -> Exec:
    condition, body = compile_expr(node.condition, plan), compile_stmt(node.body, plan)

    def run(frame: Frame) -> None:
        active: Active | None = frame.active
        while active is not None:
            with frame.only(active):
                active = active.narrow(condition(frame))
            if active is not None:
                with frame.only(active):
                    body(frame)

    return run


def _allocate(node: tirx.AllocBuffer, plan: Plan) -> Exec:
    buffer = plan.declare(node.buffer)
    if plan.usage is plan.host:
        return _allocate_on_host(node, buffer, plan)
    plan.usage.allocated.append(buffer)

    def run(frame: Frame) -> None:
        view = frame.views.get(buffer.key)
        if isinstance(view, LocalView):  # what an earlier iteration left in it is gone
            view.forget(frame.active)

    return run


def _allocate_on_host(node: tirx.AllocBuffer, buffer: Buffer, plan: Plan) -> Exec:
    extents = [compile_expr(e, plan) for e in node.buffer.ty.shape]
    itemsize = buffer.type.dtype.itemsize * buffer.type.lanes

    def run(frame: Frame) -> None:
        size = math.prod(int(e(frame)[0]) for e in extents) * itemsize
        unwritten = np.full(size, 0xFF, np.uint8)  # NaN
        memory = FlatMemory(unwritten, itemsize, 0, None, None)
        frame.views[buffer.key] = bind(buffer, memory)

    return run


def _declare(node: tirx.DeclBuffer, plan: Plan) -> Exec:
    root = plan.buffer(node.data).root
    buffer = plan.declare(node.buffer, root)

    def run(frame: Frame) -> None:
        if buffer.key not in frame.views and root in frame.views:
            frame.views[buffer.key] = bind(buffer, frame.views[root].memory)

    return run


def _attribute(node: tirx.AttrStmt, plan: Plan) -> Exec:
    if str(node.attr_key) == "thread_extent":
        return compile_launch(node, plan, compile_stmt)
    return compile_stmt(node.body, plan)


def _assert(node: tirx.AssertStmt, plan: Plan) -> Exec:
    condition = compile_expr(node.condition, plan)
    message = " ".join(str(part.value) for part in node.message_parts)

    def run(frame: Frame) -> None:
        if not frame.active.select(condition(frame)).all():
            raise HostAssertion(f"{plan.name}: {message}")

    return run


NODES: Final[Mapping[type, Callable[[Stmt, Plan], Exec]]] = {
    tirx.SeqStmt: _sequence,
    tirx.Bind: _bind,
    tirx.Evaluate: _evaluate,
    tirx.BufferStore: _store,
    tirx.IfThenElse: _if,
    tirx.For: _for,
    tirx.While: _while,
    tirx.AllocBuffer: _allocate,
    tirx.DeclBuffer: _declare,
    tirx.AttrStmt: _attribute,
    tirx.AssertStmt: _assert,
}
