"""Quantize the activations of INT4 matmuls to int8, so that CPUs multiply integers.

    quantized_matmul(x, parts)   ->   int8_matmul(quantize_act(x), parts)

Two matmuls of one x share its quantization. Matmuls with unquantized weights stay float32,
and so does a width that groups of 32 do not divide. Rows that may be several can share a scale
over more k than a group of the weights has: `several` says how.

Runs before all that fuses into a matmul: one that has a source, a residual or SwiGLU stays float32.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.layout import GROUP
from mlc_compile.passes import events
from mlc_compile.passes.rewrite import Fuser, first_reason, fuse_functions
from mlc_compile.quant import SCHEMES, has_codes

MATMUL: Final = "mlc.quantized_matmul"
QUANTIZE: Final = "mlc.quantize_act"


@module_pass(opt_level=0, name="QuantizeActivations")
@dataclass(frozen=True)
class QuantizeActivations:
    """Every `mlc.quantized_matmul` whose weights are INT4; none, if there is a `refusal`.

    A refusal is the reason why all activations stay float32, for the report. `several` is the
    grouping of rows that may be several, where it divides k.
    """

    refusal: str | None = None
    several: ops.Grouping = ops.NARROW

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, partial(_Quantizer, given=self))


@mutator
class _Quantizer(Fuser):
    step: ClassVar[str] = "QuantizeActivations"

    def __init__(
        self,
        mod: IRModule,
        func: relax.Function,
        noted: list[events.Event],
        given: QuantizeActivations,
    ) -> None:
        super().__init__(mod, func, noted)
        self.given = given
        self.acts: dict[relax.Expr, list[relax.Var]] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not ops.is_call(call, MATMUL):
            return call
        reason = self.given.refusal or _refusal(call)
        if reason is not None:
            self.refused(MATMUL, reason)
            return call
        x, *parts = call.args
        self.done(MATMUL)
        return ops.int8_matmul(self._acts_of(x), parts, ops.Matrix.of(call))

    def _acts_of(self, x: relax.Expr) -> list[relax.Var]:
        if x not in self.acts:
            source = ops.Source("plain", int(ops.shape_of(x)[-1]))
            both = self.builder_.emit(ops.quantize_act([x], source, self._grouping(x, source.k)))
            self.acts[x] = [self.builder_.emit(relax.TupleGetItem(both, i)) for i in range(3)]
        return self.acts[x]

    def _grouping(self, x: relax.Expr, k: int) -> ops.Grouping:
        several = self.given.several
        if ops.is_one_row(x):
            return ops.NARROW
        if k % several.group:
            reason = f"its {k} columns are not a multiple of {several.group}: groups of {GROUP}"
            self.refused(QUANTIZE, reason)
            return ops.NARROW
        return several


def _refusal(matmul: relax.Call) -> str | None:
    """Why what `matmul` reads cannot be multiplied as int8."""
    scheme, k = str(matmul.attrs["scheme"]), int(matmul.attrs["k"])
    reasons = {
        f"weights of scheme {scheme} are not integers": not has_codes(SCHEMES[scheme]),
        f"its {k} columns are not a multiple of {GROUP}": k % GROUP != 0,
        "a source, a residual or SwiGLU is fused into it": not ops.is_plain(matmul),
    }
    return first_reason(reasons)
