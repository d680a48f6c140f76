"""Whether a kernel may write its result over its argument: proven from its body, or not done.

    y[i, j] = f(x[i, j], ...)   may run with y where x was

Each element of x is read only to compute the element that replaces it, and no iteration runs
twice, so no order of iterations, over vectors or threads, reads what was already replaced.
Kernels without blocks, those written by hand, are left alone: a ragged tile that repeats a
row would read its own result.
"""

from typing import Final

from tvm import ir, s_tir, tirx
from tvm.ir import Op
from tvm.sym import detect_iter_map
from tvm_ffi import structural_equal, structural_walk

NO_ALIAS: Final = "tirx.noalias"


def may_alias(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without the promise that no two of its arguments share memory."""
    return func.without_attr(NO_ALIAS) if NO_ALIAS in (func.attrs or {}) else func


def overwrites(func: tirx.PrimFunc, source: int, result: int) -> bool:
    """Whether parameter `result` of `func` may lie where parameter `source` lies."""
    x, y = func.params[source], func.params[result]
    if not (_is_buffer(x) and _is_buffer(y)) or x.ty.dtype != y.ty.dtype:
        return False
    if not structural_equal(x.ty.shape, y.ty.shape) or x.ty.strides or y.ty.strides:
        return False
    body = _Body(func)
    if len(body.stores) != 1 or len(body.realizes) != 2 or body.opaque(x, y):
        return False
    store, leaf = body.stores[0], body.realizes[0]  # in post order the root's comes last
    mine = [load for load in body.loads if load.source.same_as(x)]
    theirs = [load for load in body.loads if load.source.same_as(y)]
    return (
        store.buffer.same_as(y)
        and bool(mine)
        and not theirs
        and all(_same(load.indices, store.indices) for load in mine)
        and _visits_once(leaf, store, body.loops)
    )


class _Body:
    """What occurs in a function's body."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.stores: list[tirx.BufferStore] = []
        self.loads: list[ir.TensorLoad] = []
        self.realizes: list[s_tir.SBlockRealize] = []
        self.loops: list[tirx.For] = []
        self.whiles: list[tirx.While] = []
        self.calls: list[ir.Call] = []
        structural_walk(
            func.body,
            [
                (tirx.BufferStore, self.stores.append),
                (ir.TensorLoad, self.loads.append),
                (s_tir.SBlockRealize, self.realizes.append),
                (tirx.For, self.loops.append),
                (tirx.While, self.whiles.append),
                (ir.Call, self.calls.append),
            ],
        )

    def opaque(self, *buffers: tirx.Var) -> bool:
        """Whether a buffer is used other than by indexing, or blocks hold more than a store.

        A while loop is more: it may store to one element again and again.
        """
        if self.whiles:
            return True
        blocks = [realize.block for realize in self.realizes]
        return any(
            (isinstance(call.op, Op) and call.op.name == "tirx.address_of")
            or any(arg.same_as(b) for arg in call.args for b in buffers)
            for call in self.calls
        ) or any(b.alloc_buffers or b.match_buffers or b.init is not None for b in blocks)


def _visits_once(leaf: s_tir.SBlockRealize, store: tirx.BufferStore, loops: list[tirx.For]) -> bool:
    """Whether no element is written by two iterations."""
    axes = leaf.block.iter_vars
    spatial = all(int(axis.iter_type) == tirx.IterVar.DataPar for axis in axes)
    indexed = [[i for i, at in enumerate(store.indices) if at.same_as(a.var)] for a in axes]
    if not spatial or any(len(places) != 1 for places in indexed):
        return False
    ranges = {loop.loop_var: ir.Range.from_min_extent(loop.min, loop.extent) for loop in loops}
    found = detect_iter_map(leaf.iter_values, ranges, leaf.predicate, "bijective")
    return len(found.errors) == 0


def _same(one: list[tirx.Expr], other: list[tirx.Expr]) -> bool:
    return len(one) == len(other) and all(a.same_as(b) for a, b in zip(one, other, strict=True))


def _is_buffer(param: tirx.Var) -> bool:
    return isinstance(param.ty, tirx.BufferType)
