"""Calls of operators: which rule, by the operator's name without its dialect.

TVM turns some float32 functions into calls of C's (`expf`); they are the same rules here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import tvm
from tvm.ir import Call
from tvm.runtime import Object as Node

from . import branches, casts, functions, subgroups
from . import declarations as d
from .arithmetic import wrap
from .dtypes import INT32, Type, Value
from .enumerants import MemorySemantics, Scope
from .opcodes import Glsl, Op
from .state import Kernel

Rule = Callable[[Kernel, Call], Value]

BARRIERS: Final = ("shared", "warp")  # a subgroup is part of a block: waiting for all will do


def call(k: Kernel, node: Call) -> Value:
    """The value of a call."""
    return _rule(k, node)(k, node)


def perform(k: Kernel, node: Call) -> None:
    """A call that stands as a statement."""
    action = ACTIONS.get(_name(k, node))
    if action is not None:
        action(k, node)
    else:
        call(k, node)


def _name(k: Kernel, node: Call) -> str:
    if not isinstance(node.op, tvm.ir.Op):
        raise k.refuse(node, "kernels call no functions")
    return str(node.op.name).partition(".")[2]


def _rule(k: Kernel, node: Call) -> Rule:
    name = _name(k, node)
    if name in ACTIONS:
        raise k.refuse(node, "it has no value")
    rule = RULES.get(name)
    if rule is None:
        raise k.refuse(node, f"no rule knows the operator {node.op.name}")
    return rule


def _extern(k: Kernel, node: Call) -> Value:
    """C's functions."""
    name = str(node.args[0].value)
    function = EXTERNS.get(name)
    if function is None:
        raise k.refuse(node, f"no rule knows the function {name}")
    return function(k, _floats(k, node, list(node.args)[1:]))


def _of_values(function: functions.Function) -> Rule:
    def rule(k: Kernel, node: Call) -> Value:
        return function(k, _floats(k, node, list(node.args)))

    return rule


def _floats(k: Kernel, node: Call, arguments: Sequence[Node]) -> list[Value]:
    """What a function of floats is given."""
    values = [k.value(a) for a in arguments]
    odd = [v.type for v in values if v.type.kind != "float"]
    if odd:
        raise k.refuse(node, f"it is a function of floats, not of {odd[0]}")
    return values


def _first(k: Kernel, node: Call) -> Value:
    return k.value(node.args[0])


def _reinterpret(k: Kernel, node: Call) -> Value:
    return casts.reinterpret(k, node, k.value(node.args[0]), k.type_of(node))


def _popcount(k: Kernel, node: Call) -> Value:
    value = _unsigned(k, node)
    return Value(k.type_of(node), k.body.op(Op.BitCount, value.type, value).ids)


def _clz(k: Kernel, node: Call) -> Value:
    """Width - 1 - the highest set bit, which is -1 of zero."""
    value = _unsigned(k, node)
    lanes = value.type.lanes
    top = k.body.glsl(Glsl.FindUMsb, INT32.of(lanes), value)
    last = k.body.constant(INT32.of(lanes), value.type.bits - 1)
    return Value(k.type_of(node), k.body.op(Op.ISub, last.type, last, top).ids)


def _unsigned(k: Kernel, node: Call) -> Value:
    """The argument, with zeros above its bits."""
    value = k.value(node.args[0])
    if not value.type.integer or value.type.bits == 64:
        raise k.refuse(node, f"it counts bits of 8 to 32-bit integers, not of {value.type}")
    return wrap(k, Value(Type("uint", value.type.bits, value.type.lanes), value.ids))


def _barrier(k: Kernel, node: Call) -> None:
    """All threads of the block arrive, and see what the others wrote to shared memory.

    And to buffers, where the kernel reads from one what it writes to it.
    """
    if node.args[0].value not in BARRIERS:
        raise k.refuse(node, "threads of other blocks cannot be waited for")
    semantics = MemorySemantics.AcquireRelease | MemorySemantics.WorkgroupMemory
    if any(m.block and k.usage.coherent(root) for root, m in k.buffers.items()):
        semantics |= MemorySemantics.UniformMemory
    k.body.effects += 1
    words = (Scope.Workgroup, Scope.Workgroup, semantics)
    k.body.act(Op.ControlBarrier, *[d.word(k.module, w) for w in words])


def _nothing(_k: Kernel, _node: Node) -> None:
    """What tells the compiler something, and does nothing."""


ACTIONS: Final[Mapping[str, Callable[[Kernel, Call], None]]] = {
    "tvm_storage_sync": _barrier,
    "assume": _nothing,
}

RULES: Final[Mapping[str, Rule]] = {
    **{name: _of_values(function) for name, function in functions.OPERATORS.items()},
    "call_pure_extern": _extern,
    "if_then_else": branches.if_then_else,
    "reinterpret": _reinterpret,
    "popcount": _popcount,
    "clz": _clz,
    "likely": _first,
    "tvm_thread_invariant": _first,
    "tvm_warp_activemask": subgroups.active_mask,
    "tvm_warp_shuffle": subgroups.shuffle,
    "tvm_warp_shuffle_up": subgroups.shuffle_up,
    "tvm_warp_shuffle_down": subgroups.shuffle_down,
    "tvm_warp_shuffle_xor": subgroups.shuffle_xor,
}

# The functions of C that TVM's lowering names, all of float32.
EXTERNS: Final[Mapping[str, functions.Function]] = {
    f"{name}f": function for name, function in functions.OPERATORS.items() if name in functions.C
}
