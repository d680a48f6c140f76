"""Give every weight the packing that the target's kernels read.

    weight(q_weight, raw u32[n, k/8])      ->   weight(q_weight, rows16 i32[n/16, k/32, 4, 16])
    astype(weight(norm, raw f16[k]), f32)  ->   weight(norm, wide f32[k])

Only shapes change here; the bytes move once, when the weight plan is carried out.
Idempotent: a weight that already has a layout is left alone.
"""

from dataclasses import dataclass, replace

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.layout import LAYOUTS
from mlc_compile.passes.rewrite import Bindings, bindings_of, mutate, rewrite_functions

VECTORS = "wide"


@module_pass(opt_level=0, name="AssignLayouts")
@dataclass(frozen=True)
class AssignLayouts:
    """`matrices` is the key in layout.LAYOUTS for two-dimensional weights."""

    matrices: str

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        def rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
            return mutate(_Assigner(mod, bindings_of(func), self.matrices), func)

        return rewrite_functions(mod, rewrite)


@mutator
class _Assigner(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings, matrices: str) -> None:
        super().__init__(mod)
        self.bindings = bindings
        self.matrices = matrices

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if ops.is_call(call, "mlc.weight"):
            w = ops.Weight.of(call)
            return ops.weight(self._assign(w)) if w.layout == ops.RAW else call
        if ops.is_call(call, "relax.astype") and self._is_vector(call.args[0]):
            return self.visit_expr(call.args[0])  # now float32 as stored
        return super().visit_call_(call)

    def _is_vector(self, var: relax.Expr) -> bool:
        bound = self.bindings.get(var)
        if bound is None or not ops.is_call(bound, "mlc.weight"):
            return False
        return len(bound.attrs["shape"]) == 1

    def _assign(self, w: ops.Weight) -> ops.Weight:
        layout = self.matrices if len(w.shape) == 2 else VECTORS
        shape, dtype = LAYOUTS[layout].shapes({w.part: (w.shape, w.dtype)})[w.part]
        return replace(w, layout=layout, shape=shape, dtype=dtype)
