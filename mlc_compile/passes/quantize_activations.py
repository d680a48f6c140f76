"""Quantize the activations of INT4 matmuls to int8, so that CPUs multiply integers.

    quantized_matmul(x, parts)   ->   int8_matmul(quantize_act(x), parts)

Two matmuls of one x share its quantization. Matmuls with unquantized weights stay float32,
and so does a width that groups of 32 do not divide.
"""

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import mutate, rewrite_functions
from mlc_compile.quant import find_scheme, has_codes


@module_pass(opt_level=0, name="QuantizeActivations")
class QuantizeActivations:
    """Every `mlc.quantized_matmul` whose weights are INT4."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return rewrite_functions(mod, _rewrite)


def _rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
    return mutate(_Quantizer(mod), func)


@mutator
class _Quantizer(PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.acts: dict[relax.Expr, list[relax.Var]] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not ops.is_call(call, "mlc.quantized_matmul") or not _is_int4(call):
            return call
        x, *parts = call.args
        return ops.int8_matmul(self._acts_of(x), parts, int(call.attrs["n"]), residual=None)

    def _acts_of(self, x: relax.Expr) -> list[relax.Var]:
        if x not in self.acts:
            source = ops.Source("plain", int(ops.shape_of(x)[-1]))
            both = self.builder_.emit(ops.quantize_act([x], source))
            self.acts[x] = [self.builder_.emit(relax.TupleGetItem(both, i)) for i in range(3)]
        return self.acts[x]


def _is_int4(call: relax.Call) -> bool:
    k = int(ops.shape_of(call.args[0])[-1])
    return k % ops.GROUP == 0 and has_codes(find_scheme(str(call.attrs["scheme"])))
