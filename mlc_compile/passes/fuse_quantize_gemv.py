"""When one token is decoded, quantize inside the matmul: one launch instead of two.

    int8_matmul(quantize_act(x; source), parts)   ->   int8_gemv(x, parts; source)

For one row only: every thread repeats the quantization, which for one row costs less than
a barrier and the kernel for several rows (`cost.quantize_in_gemv`).
Only if the matmul is the quantization's only reader; after MergeProjections it is.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes import cost
from mlc_compile.passes.rewrite import Bindings, TargetFuser, call_of, fuse_functions
from mlc_compile.target import Target

MATMUL: Final = "mlc.int8_matmul"


@module_pass(opt_level=0, name="FuseQuantizeGemv")
@dataclass(frozen=True)
class FuseQuantizeGemv:
    """Every single-row `mlc.int8_matmul`, where that pays."""

    target: Target

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, partial(_Fuser, target=self.target))


@mutator
class _Fuser(TargetFuser):
    step: ClassVar[str] = "FuseQuantizeGemv"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, MATMUL):
            return super().visit_call_(call)
        quantize = quantization_of(call, self.bindings)
        if quantize is None:
            return self._stays(call, "its activations are not the results of one quantization")
        if any(self.uses[a] != 1 for a in call.args[:3]):
            return self._stays(call, "its activations have other readers")
        reason = self._refusal(call, ops.Source.of(quantize))
        if reason is not None:
            return self._stays(call, reason)
        self.done(MATMUL)
        inputs = [self.visit_expr(a) for a in quantize.args]
        rest = [self.visit_expr(a) for a in call.args[3:]]
        return ops.int8_gemv(inputs, rest, ops.Source.of(quantize), call)

    def _refusal(self, matmul: relax.Call, source: ops.Source) -> str | None:
        """Why `matmul` is not worth quantizing in each thread."""
        if not ops.is_one_row(matmul):
            return "it has, or may have, several rows"
        sizes = cost.Matmul.of(matmul, source.k)
        return cost.quantize_in_gemv(self.target, sizes, source).refusal

    def _stays(self, matmul: relax.Call, reason: str) -> relax.Expr:
        self.refused(MATMUL, reason)
        return super().visit_call_(matmul)


def quantization_of(matmul: relax.Call, bindings: Bindings) -> relax.Call | None:
    """The call whose three results a `mlc.int8_matmul` multiplies by."""
    items = [call_of(a, bindings) for a in matmul.args[:3]]
    if not all(isinstance(i, relax.TupleGetItem) for i in items):
        return None
    if [i.index for i in items] != [0, 1, 2] or len({i.tuple_value for i in items}) != 1:
        return None
    quantize = call_of(items[0].tuple_value, bindings)
    return quantize if ops.is_call(quantize, "mlc.quantize_act") else None
