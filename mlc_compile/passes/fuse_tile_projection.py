"""Append queries, keys and values while the sums that make them are in the L1 cache.

    qkv = bf16_matmul(pairs, parts);  tile_append(qkv, gammas, angles, cache ..)
        ->   tile_project(pairs, parts, gammas, angles, cache ..)

qkv is never written in float32, nor read again. Must run after MultiplyBF16Tiles, which makes
these operators. Only if nothing else reads qkv, and no residual is added to it.
"""

from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Fuser, first_reason, fuse_functions
from mlc_compile.passes.values import behind

APPEND: Final = "mlc.tile_append"
MATMUL: Final = "mlc.bf16_matmul"


@module_pass(opt_level=0, name="FuseTileProjection")
class FuseTileProjection:
    """Every `mlc.tile_append` of what a product on tiles gives."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseTileProjection"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, APPEND):
            return super().visit_call_(call)
        qkv, call = call.args[0], super().visit_call_(call)
        matmul = behind(call.args[0], self.builder_)
        if not ops.is_call(matmul, MATMUL):
            return call
        reasons = {
            "what it reads has other readers": self.uses[qkv] > 1,
            "a residual is added before it": bool(matmul.attrs["residual"]),
            "its weight has several parts": len(matmul.args) > 2,
        }
        reason = first_reason(reasons)
        if reason is not None:
            self.refused(APPEND, reason)
            return call
        self.done(APPEND)
        return ops.tile_project(matmul, call.args[1:], ops.Attention.of(call))
