"""Add the residual where a matmul's sums are still in registers.

    add(x, int8_matmul(acts, parts))   ->   int8_matmul(acts, parts, residual=x)

Only if the sum is the matmul's only reader and x has the matmul's shape (no broadcast).
"""

from collections import Counter

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from mlc_compile import ops
from mlc_compile.passes.rewrite import (
    Bindings,
    bindings_of,
    call_of,
    mutate,
    rewrite_functions,
    uses_of,
)


@module_pass(opt_level=0, name="FuseResidual")
class FuseResidual:
    """Every addition of a tensor to a fresh `mlc.int8_matmul`."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return rewrite_functions(mod, _rewrite)


def _rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
    return mutate(_Fuser(mod, bindings_of(func), uses_of(func)), func)


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings, uses: Counter[relax.Var]) -> None:
        super().__init__(mod)
        self.bindings = bindings
        self.uses = uses

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "relax.add"):
            return super().visit_call_(call)
        for base, sums in (call.args, reversed(call.args)):
            matmul = call_of(sums, self.bindings)
            if self._fusible(matmul, sums, base):
                args = [self.visit_expr(a) for a in matmul.args]
                n = int(matmul.attrs["n"])
                return ops.int8_matmul(args[:3], args[3:], n, self.visit_expr(base))
        return super().visit_call_(call)

    def _fusible(self, matmul: relax.Expr, sums: relax.Var, base: relax.Expr) -> bool:
        return (
            ops.is_call(matmul, "mlc.int8_matmul")
            and not matmul.attrs["residual"]
            and self.uses[sums] == 1
            and base != sums
            and structural_equal(base.ty, sums.ty)
        )
