"""Give every weight the packing that the target's kernels read.

    quantized_matmul(x, q_weight, q_scale)  ->  quantized_matmul(x, packed in rows16)
    astype(weight(norm, f16[k]), f32)       ->  weight(norm, wide f32[k])

Only shapes change here; the bytes move once, when the weight plan is carried out. A layout
may join the parts of a weight into fewer arrays. Idempotent: a weight that already has a
layout is left alone.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.layout import LAYOUTS, ranges_for
from mlc_compile.passes.rewrite import Bindings, bindings_of, call_of, mutate, rewrite_functions

VECTORS: Final = "wide"
READERS: Final = ("mlc.quantized_matmul", "mlc.quantized_take")  # of a matrix's parts


@module_pass(opt_level=0, name="AssignLayouts")
@dataclass(frozen=True)
class AssignLayouts:
    """`matrices` is the key in layout.LAYOUTS for two-dimensional weights.

    Of those, what has more than `most` bytes is cut into ranges of rows, if its layout can be.
    """

    matrices: str
    most: int | None = None

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        def rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
            return mutate(_Assigner(mod, bindings_of(func), self), func)

        return rewrite_functions(mod, rewrite)


@mutator
class _Assigner(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings, asked: AssignLayouts) -> None:
        super().__init__(mod)
        self.bindings = bindings
        self.asked = asked

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if any(ops.is_call(call, reader) for reader in READERS):
            x, *parts = call.args
            return ops.with_args(call, [self.visit_expr(x), *self._packed(parts)])
        if ops.is_call(call, "mlc.weight") and _is_raw_vector(call):
            (packed,) = _assign([ops.Weight.of(call)], VECTORS)
            return ops.weight(packed)
        if self._is_widening_of_vector(call):
            return self.visit_expr(call.args[0])  # now float32 as stored
        return super().visit_call_(call)

    def _packed(self, parts: list[relax.Expr]) -> list[relax.Expr]:
        weights = [ops.Weight.of(self.bindings[p]) for p in parts]
        if weights[0].layout != ops.RAW:
            return [self.visit_expr(p) for p in parts]
        layout = _cut(weights[0], self.asked)
        return [self.builder_.emit(ops.weight(w)) for w in _assign(weights, layout)]

    def _is_widening_of_vector(self, call: relax.Call) -> bool:
        if not ops.is_call(call, "relax.astype") or not ops.in_compute_dtype(call):
            return False
        bound = call_of(call.args[0], self.bindings)
        return ops.is_call(bound, "mlc.weight") and len(bound.attrs["shape"]) == 1


def _cut(first: ops.Weight, asked: AssignLayouts) -> str:
    """The layout of a matrix with this first part, the largest."""
    n, *columns = first.shape
    row_bytes = math.prod(columns) * np.dtype(first.dtype).itemsize
    ranges = ranges_for(n, row_bytes, asked.most)
    return f"{asked.matrices}{ranges}" if ranges > 1 else asked.matrices


def _is_raw_vector(call: relax.Call) -> bool:
    w = ops.Weight.of(call)
    return w.layout == ops.RAW and len(w.shape) == 1


def _assign(parts: list[ops.Weight], layout: str) -> list[ops.Weight]:
    shapes = LAYOUTS[layout].shapes({w.part: (w.shape, w.dtype) for w in parts})
    return [
        replace(parts[0], part=part, layout=layout, shape=shape, dtype=dtype)
        for part, (shape, dtype) in shapes.items()
    ]
