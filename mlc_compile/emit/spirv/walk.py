"""Which nodes a TIR node holds: for looking ahead without computing anything."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.runtime import Object as Node

PAIRS: Final = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
    tirx.EQ,
    tirx.NE,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.And,
    tirx.Or,
    tirx.LShift,
    tirx.RShift,
    tirx.BitwiseAnd,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
)

# Fields with nodes, of a node class: one node, several, or None.
FIELDS: Final[Mapping[type, tuple[str, ...]]] = {
    **dict.fromkeys(PAIRS, ("a", "b")),
    tirx.Not: ("a",),
    tirx.BitwiseNot: ("a",),
    tirx.Cast: ("value",),
    tirx.Select: ("condition", "true_value", "false_value"),
    tirx.Ramp: ("base", "stride"),
    tirx.Broadcast: ("value",),
    tirx.Shuffle: ("vectors",),
    tirx.Let: ("value", "body"),
    tvm.ir.TensorLoad: ("indices",),
    tvm.ir.Call: ("args",),
    tirx.SeqStmt: ("seq",),
    tirx.Bind: ("value",),
    tirx.Evaluate: ("value",),
    tirx.BufferStore: ("indices", "value"),
    tirx.IfThenElse: ("condition", "then_case", "else_case"),
    tirx.For: ("min", "extent", "body"),
    tirx.While: ("condition", "body"),
    tirx.AttrStmt: ("body",),
}


def children(node: Node) -> Iterator[Node]:
    """The nodes that a node holds, in order of execution."""
    for name in FIELDS.get(type(node), ()):
        held = getattr(node, name)
        if isinstance(held, tvm_ffi.Array):
            yield from held
        elif held is not None:
            yield held


def visit(node: Node, see: Callable[[Node], None]) -> None:
    """Show every node to `see`, a holder before what it holds; a shared one once."""
    _visit(node, see, set())


def _visit(node: Node, see: Callable[[Node], None], seen: set[int]) -> None:
    key = key_of(node)
    if key in seen:
        return
    seen.add(key)
    see(node)
    for child in children(node):
        _visit(child, see, seen)


def key_of(node: Node) -> int:
    """Identity of a node or variable; printed names are not unique."""
    return int(node.__chandle__())
