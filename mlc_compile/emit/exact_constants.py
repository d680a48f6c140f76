"""Float constants by their bits, for code generators that print seven digits.

float32 needs nine: 2**32 / 2π, by which RoPE's angles become parts of a turn, is printed as
6.835653e+08 and read as another number. What seven digits hold stays as it is, and reads better.

    c  ->  reinterpret(float32, bits of c)      where float32(seven digits of c) is not c

Reductions over threads are lowered before, as TVM would do next: it knows one by the constant that
it begins with, -FLT_MAX where the largest is sought.

This TVM has no TIR mutator in Python, so the functions are rewritten in their JSON form: an
array of nodes that refer to each other by index, in any order.
"""

import json
import struct
from typing import Any, Final

import tvm
from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import Sequential

DIGITS: Final = ".6e"  # how Metal's and WebGPU's generators print
Node = dict[str, Any]


def with_exact_constants(mod: IRModule) -> IRModule:
    """`mod` with such constants of its PrimFuncs replaced."""
    changed = {
        gv: _rewritten(func)
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    mod = IRModule(dict(mod.functions), attrs=mod.attrs)
    mod.update({gv: func for gv, func in changed.items() if func is not None})
    return mod


def is_printed_exactly(value: float) -> bool:
    """Whether float32 `value` is what its seven digits are read as."""
    return _bits(float(f"{value:{DIGITS}}")) == _bits(value)


def _rewritten(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The function with exact constants; None if all are."""
    if not _inexact(_graph(func)["nodes"]):
        return None
    graph = _graph(_lowered(func))
    nodes: list[Node] = graph["nodes"]
    shared = {
        "op": _add(nodes, {"type": "ir.Op", "data": "tirx.reinterpret"}),
        "uint32": _add(nodes, {"type": "ir.PrimType", "data": {"span": 0, "dtype": "uint32"}}),
        "none": _add(nodes, {"type": "ffi.Array", "data": []}),
    }
    for node in _inexact(nodes):
        _reinterpret(node, nodes, shared)
    return tvm.ir.load_json(json.dumps(graph))


def _graph(func: tirx.PrimFunc) -> dict[str, Any]:
    graph: dict[str, Any] = json.loads(tvm.ir.save_json(func))
    return graph


def _lowered(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its reductions over threads lowered; TVM's own run finds none."""
    steps = [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
    return Sequential(steps)(IRModule({"main": func}))["main"]


def _inexact(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if _is_float32(node, nodes) and _is_inexact(node)]


def _reinterpret(node: Node, nodes: list[Node], shared: dict[str, int]) -> None:
    """Turn a constant's node into the call; node 0 is null, for spans and attributes."""
    data = node["data"]
    bits = _add(nodes, {"type": "int", "data": _bits(data["value"])})
    uint32 = {"span": 0, "ty": shared["uint32"], "value": bits}
    argument = _add(nodes, {"type": "ir.IntImm", "data": uint32})
    node["type"] = "ir.Call"
    node["data"] = {
        "span": 0,
        "ty": data["ty"],
        "op": shared["op"],
        "args": _add(nodes, {"type": "ffi.Array", "data": [argument]}),
        "attrs": 0,
        "ty_args": shared["none"],
    }


def _is_float32(node: Node, nodes: list[Node]) -> bool:
    if node["type"] != "ir.FloatImm":
        return False
    return bool(nodes[node["data"]["ty"]]["data"]["dtype"] == "float32")


def _is_inexact(node: Node) -> bool:
    value = node["data"]["value"]
    return isinstance(value, float) and not is_printed_exactly(value)


def _add(nodes: list[Node], node: Node) -> int:
    nodes.append(node)
    return len(nodes) - 1


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
