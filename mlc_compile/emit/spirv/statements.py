"""Statements: blocks, structured as SPIR-V demands, by TIR's node class."""

from collections.abc import Callable, Mapping
from typing import Final

import tvm
from tvm import tirx
from tvm.runtime import Object as Node

from . import calls, memory
from .arithmetic import COMPARISONS
from .dtypes import BOOL, Value
from .enumerants import NO_CONTROL, LoopControl, StorageClass
from .interface import THREAD_AXES, axis
from .opcodes import Op
from .state import Kernel

SHARED: Final = "shared"
SCOPES: Final = {SHARED: StorageClass.Workgroup, "local": StorageClass.Function}

# Loops of these kinds run one iteration after the other here; the hint is for the unrolled.
CONTROLS: Final = {
    tirx.ForKind.SERIAL: LoopControl.Nothing,
    tirx.ForKind.PARALLEL: LoopControl.Nothing,
    tirx.ForKind.VECTORIZED: LoopControl.Nothing,
    tirx.ForKind.UNROLLED: LoopControl.Unroll,
}

# Attributes that say nothing to SPIR-V.
HINTS: Final = {"tirx.launch_bounds_min_blocks_per_sm"}


def execute(k: Kernel, node: Node) -> None:
    """Write the instructions of a statement."""
    make = RULES.get(type(node))
    if make is None:
        raise k.refuse(node, "no rule executes it")
    make(k, node)


def _sequence(k: Kernel, node: tirx.SeqStmt) -> None:
    for one in node.seq:
        execute(k, one)


def _bind(k: Kernel, node: tirx.Bind) -> None:
    k.bind(node.var, k.value(node.value))


def _evaluate(k: Kernel, node: tirx.Evaluate) -> None:
    if isinstance(node.value, tvm.ir.Call):
        calls.perform(k, node.value)


def _if(k: Kernel, node: tirx.IfThenElse) -> None:
    condition, fresh = k.value(node.condition), k.module.fresh
    then, merge = fresh(), fresh()
    other = merge if node.else_case is None else fresh()
    k.body.act(Op.SelectionMerge, merge, NO_CONTROL)
    k.body.act(Op.BranchConditional, condition.ids[0], then, other)
    _block(k, then, node.then_case, merge)
    if node.else_case is not None:
        _block(k, other, node.else_case, merge)
    k.body.open_block(merge)


def _block(k: Kernel, label: int, body: Node, after: int) -> None:
    """Statements that something before may skip."""
    with k.body.scope():
        k.body.open_block(label)
        execute(k, body)
        k.body.act(Op.Branch, after)


def _for(k: Kernel, node: tirx.For) -> None:
    """Header, test and body, continue, merge; the variable is a phi of the header."""
    control = CONTROLS.get(tirx.ForKind(node.kind))
    if control is None:
        raise k.refuse(node, "its kind of loop does not reach a device")
    start, extent = k.value(node.min), k.value(node.extent)
    type_, body = start.type, k.body
    end = body.op(Op.IAdd, type_, start, extent)
    step = body.constant(type_, 1 if node.step is None else node.step.value)
    fresh = k.module.fresh
    header, inside, onward, merge, following = (fresh() for _ in range(5))
    before = body.label
    body.act(Op.Branch, header)
    with body.scope():
        body.open_block(header)
        held = body.held(type_)
        phi = body.impure(Op.Phi, held, *start.ids, before, following, onward)
        here = Value(type_, (phi,))
        less = body.op(COMPARISONS[tirx.LT][type_.kind], BOOL, here, end)
        body.act(Op.LoopMerge, merge, onward, control)
        body.act(Op.BranchConditional, less.ids[0], inside, merge)
        k.bind(node.loop_var, here)
        _block(k, inside, node.body, onward)
        body.open_block(onward)
        body.act(Op.IAdd, held, following, phi, *step.ids)
        body.act(Op.Branch, header)
    body.open_block(merge)


def _while(k: Kernel, node: tirx.While) -> None:
    """As `_for`; the condition has blocks of its own, for it may branch."""
    body, fresh = k.body, k.module.fresh
    header, test, inside, onward, merge = (fresh() for _ in range(5))
    body.act(Op.Branch, header)
    with body.scope():
        body.open_block(header)
        body.act(Op.LoopMerge, merge, onward, LoopControl.Nothing)
        body.act(Op.Branch, test)
        body.open_block(test)
        condition = k.value(node.condition)
        body.act(Op.BranchConditional, condition.ids[0], inside, merge)
        _block(k, inside, node.body, onward)
        body.open_block(onward)
        body.act(Op.Branch, header)
    body.open_block(merge)


def _allocate(k: Kernel, node: tirx.AllocBuffer) -> None:
    scope = str(node.buffer.ty.storage_scope)
    storage = SCOPES.get(scope)
    if storage is None:
        raise k.refuse(node, f"devices have no memory of scope {scope!r}")
    if k.usage.root(node.buffer) in k.buffers:
        return  # the same statement, which stands twice
    size = memory.allocate(k, node, storage)
    if scope == SHARED:
        k.shared_bytes += size


def _declared(k: Kernel, node: tirx.DeclBuffer) -> None:
    if k.usage.root(node.buffer) is None:
        raise k.refuse(node, "it shows no parameter and nothing allocated before")


def _attribute(k: Kernel, node: tirx.AttrStmt) -> None:
    name = str(node.attr_key)
    if name == "thread_extent":
        _axis(k, node)
    elif name not in HINTS:
        raise k.refuse(node, f"no rule knows the attribute {name}")
    execute(k, node.body)


def _axis(k: Kernel, node: tirx.AttrStmt) -> None:
    tag, variable = str(node.node.thread_tag), node.node.var
    if tag not in THREAD_AXES:
        raise k.refuse(node, f"there is no thread axis {tag}")
    if tag.startswith("threadIdx"):
        if not isinstance(node.value, tirx.IntImm):
            raise k.refuse(node, "the number of threads is not a constant")
        _set_threads(k, node, "xyz".index(tag[-1]), node.value.value)
    k.bind(variable, Value(k.type_of(variable), axis(k, tag).ids))


def _set_threads(k: Kernel, node: tirx.AttrStmt, number: int, threads: int) -> None:
    if k.local_size[number] not in (1, threads):
        raise k.refuse(node, f"the axis had {k.local_size[number]} threads before")
    k.local_size[number] = threads


Rule = Callable[[Kernel, Node], None]

RULES: Final[Mapping[type, Rule]] = {
    tirx.SeqStmt: _sequence,
    tirx.Bind: _bind,
    tirx.Evaluate: _evaluate,
    tirx.BufferStore: memory.store,
    tirx.IfThenElse: _if,
    tirx.For: _for,
    tirx.While: _while,
    tirx.AllocBuffer: _allocate,
    tirx.DeclBuffer: _declared,
    tirx.AttrStmt: _attribute,
}
