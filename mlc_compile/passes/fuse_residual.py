"""Add the residual where a matmul's sums are still in registers.

    add(x, int8_matmul(acts, parts))     ->   int8_matmul(acts, parts, residual=x)
    add(x, quantized_matmul(y, parts))   ->   quantized_matmul(y, parts, residual=x)

Only if the sum is the matmul's only reader and x has the matmul's shape (no broadcast).
"""

from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator
from tvm_ffi import structural_equal

from mlc_compile import ops
from mlc_compile.passes.rewrite import Fuser, call_of, fuse_functions

MATMULS: Final = ("mlc.int8_matmul", "mlc.quantized_matmul")


@module_pass(opt_level=0, name="FuseResidual")
class FuseResidual:
    """Every addition of a tensor to a fresh product of quantized weights."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseResidual"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "relax.add"):
            return super().visit_call_(call)
        reasons = []
        for base, sums in (call.args, reversed(call.args)):
            matmul = call_of(sums, self.bindings)
            if not any(ops.is_call(matmul, name) for name in MATMULS):
                continue
            name, reason = str(matmul.op.name), self._refusal(matmul, sums, base)
            if reason is None:
                self.done(name)
                args = [self.visit_expr(a) for a in matmul.args]
                return ops.with_residual(matmul, args, self.visit_expr(base))
            reasons.append((name, reason))
        for refusal in reasons:
            self.refused(*refusal)
        return super().visit_call_(call)

    def _refusal(self, matmul: relax.Call, sums: relax.Var, base: relax.Expr) -> str | None:
        """Why `matmul`, bound to `sums`, cannot start from `base`."""
        if matmul.attrs["residual"]:
            return "it has a residual already"
        if self.uses[sums] != 1 or base == sums:
            return "its result has other readers"
        if not structural_equal(base.ty, sums.ty):
            return "the residual has another shape"
        return None
