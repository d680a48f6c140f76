"""Pointers into buffers: `buffer.access_ptr(...)`, `address_of(buffer[i])`, `buffer.data`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .dtypes import constant
from .errors import Unsupported
from .plan import Eval, Plan

Compile = Callable[[object, Plan], Eval]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A buffer and an offset in its scalars, [threads] or [1]."""

    key: int
    root: int
    offset: Eval


def compile_pointer(node: object, plan: Plan, compile_expr: Compile) -> Pointer:
    """What a pointer argument points at."""
    name = node.op.name.removeprefix("tirx.")
    if name == "tvm_access_ptr":
        buffer, offset = plan.buffer(node.args[1]), compile_expr(node.args[2], plan)
    elif name == "address_of":
        (load,) = node.args
        (index,) = load.indices
        buffer, offset = plan.buffer(load.source), compile_expr(index, plan)
    elif name == "buffer_data":
        zero = constant(0, np.dtype("int64"))
        buffer, offset = plan.buffer(node), lambda _frame: zero
    else:
        raise Unsupported(f"{plan.name}: no rule for pointer {node.op.name}")
    if buffer.type.lanes != 1:
        raise Unsupported(f"{plan.name}: pointer into {buffer.name}, whose elements are vectors")
    plan.usage.touched.add(buffer.root)
    return Pointer(buffer.key, buffer.root, offset)
