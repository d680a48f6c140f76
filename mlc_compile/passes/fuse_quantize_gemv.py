"""When one token is decoded, quantize inside the matmul: one launch instead of two.

    int8_matmul(quantize_act(x; source), parts)   ->   int8_gemv(x, parts; source)

For one row only: every thread repeats the quantization, which for one row costs less than
a barrier and for many would not. Only if the matmul is the quantization's only reader;
after MergeProjections it is.
"""

from collections import Counter

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import (
    Bindings,
    bindings_of,
    call_of,
    mutate,
    rewrite_functions,
    uses_of,
)


@module_pass(opt_level=0, name="FuseQuantizeGemv")
class FuseQuantizeGemv:
    """Every single-row `mlc.int8_matmul`."""

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
        if not ops.is_call(call, "mlc.int8_matmul") or not ops.is_one_row(call):
            return super().visit_call_(call)
        quantize = self._only_reader_of(call)
        if quantize is None:
            return super().visit_call_(call)
        inputs = [self.visit_expr(a) for a in quantize.args]
        rest = [self.visit_expr(a) for a in call.args[3:]]
        return ops.int8_gemv(inputs, rest, ops.Source.of(quantize), call)

    def _only_reader_of(self, matmul: relax.Call) -> relax.Call | None:
        items = [call_of(a, self.bindings) for a in matmul.args[:3]]
        if not all(isinstance(i, relax.TupleGetItem) for i in items):
            return None
        if [i.index for i in items] != [0, 1, 2] or len({i.tuple_value for i in items}) != 1:
            return None
        if any(self.uses[a] != 1 for a in matmul.args[:3]):
            return None
        quantize = call_of(items[0].tuple_value, self.bindings)
        return quantize if ops.is_call(quantize, "mlc.quantize_act") else None
