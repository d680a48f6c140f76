"""How a kernel uses its buffers, read before anything is written.

What is only read, what only written, what threads hand each other through, and how many lanes
one element of a buffer may have: four, if every access is of four neighbors that begin at a
multiple of four. One load of 16 bytes is then one instruction on every device, also where its
compiler does not join neighbors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import tvm
from tvm import tirx
from tvm.runtime import Object as Node

from .dtypes import WIDEST, parse
from .walk import key_of, visit

SYNC: Final = "tirx.tvm_storage_sync"
DATA: Final = "tirx.buffer_data"


@dataclass(slots=True)
class Usage:
    """By the key of a root: the parameter or allocation whose memory buffers show."""

    roots: dict[int, int] = field(default_factory=dict)  # of buffers
    widths: dict[int, int] = field(default_factory=dict)  # lanes of an element
    loaded: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    barriers: bool = False

    def root(self, buffer: Node) -> int | None:
        """Of a buffer, or of the pointer to its data; None if neither is known."""
        if isinstance(buffer, tvm.ir.Call) and buffer.op.name == DATA:
            (buffer,) = buffer.args
        return self.roots.get(key_of(buffer))

    def coherent(self, root: int) -> bool:
        """Whether threads of a block may read from it what others wrote."""
        return self.barriers and root in self.loaded and root in self.stored


def usage_of(func: tirx.PrimFunc) -> Usage:
    """Read a whole kernel."""
    usage = Usage(roots={key_of(p): key_of(p) for p in func.params})
    analyzer = tvm.sym.Analyzer()

    def access(buffer: tirx.Buffer, index: Node, used: set[int]) -> None:
        root = usage.root(buffer)
        if root is None:
            return  # refused where it is emitted
        used.add(root)
        known = usage.widths.get(root, WIDEST)
        usage.widths[root] = math.gcd(known, neighbors(buffer, index, analyzer))

    see = {
        tirx.AllocBuffer: lambda n: usage.roots.update({key_of(n.buffer): key_of(n.buffer)}),
        tirx.DeclBuffer: lambda n: _declare(usage, n),
        tirx.BufferStore: lambda n: access(n.buffer, n.indices[0], usage.stored),
        tvm.ir.TensorLoad: lambda n: access(n.source, n.indices[0], usage.loaded),
        tvm.ir.Call: lambda n: _call(usage, n),
    }
    visit(func.body, lambda node: _dispatch(see, node))
    return usage


def neighbors(buffer: tirx.Buffer, index: Node, analyzer: tvm.sym.Analyzer) -> int:
    """4, 2 or 1: so many lanes of each access certainly are an aligned group."""
    element = parse(str(buffer.ty.dtype.dtype))
    lanes = 1 if element is None else element.lanes
    start = consecutive(index)
    if lanes > 1 or start is None:
        return math.gcd(lanes, WIDEST)
    known = analyzer.modular_set(start)
    return math.gcd(index.lanes.value, known.coeff, known.base, WIDEST)


def consecutive(index: Node) -> Node | None:
    """Where neighboring elements begin, if that is what an index names."""
    if isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm):
        return index.base if index.stride.value == 1 else None
    return None


def _dispatch(see: dict[type, Callable[[Node], None]], node: Node) -> None:
    found = see.get(type(node))
    if found is not None:
        found(node)


def _declare(usage: Usage, node: tirx.DeclBuffer) -> None:
    root = usage.root(node.data)
    if root is not None:
        usage.roots[key_of(node.buffer)] = root


def _call(usage: Usage, node: tvm.ir.Call) -> None:
    if isinstance(node.op, tvm.ir.Op) and node.op.name == SYNC:
        usage.barriers = True
