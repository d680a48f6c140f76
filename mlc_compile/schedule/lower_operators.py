"""Lower operators to kernels by the target's rules: the last pass that sees `mlc.*`.

    y = quantized_matmul(x, parts)   ->   y = call_tir(gemv, (x, parts))

An operator that no rule answers is left to TVM's own legalization; an `mlc.*` operator
has none there, so it is our bug and says so. Equal kernels are one function.
"""

from collections import Counter
from dataclasses import dataclass

from tvm import IRModule, relax
from tvm.ir import Op
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile.passes import events
from mlc_compile.passes.rewrite import relax_functions
from mlc_compile.schedule import cpu
from mlc_compile.schedule.rule import Kernel, Rule
from mlc_compile.target import Target

RULES: dict[str, dict[str, Rule]] = {"cpu": cpu.RULES}  # by backend


@module_pass(opt_level=0, name="LowerOperators")
@dataclass(frozen=True)
class LowerOperators:
    """Rules are chosen by the target's backend."""

    target: Target

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        lowerer = _Lowerer(mod, self.target)
        for gv, func in relax_functions(mod):
            body = lowerer.visit_expr(func.body)
            lowered = relax.Function(func.params, body, None, func.is_pure, func.attrs)
            lowerer.builder_.update_func(gv, lowered)
        out = lowerer.builder_.get()
        for key, value in (mod.attrs or {}).items():
            out = out.with_attr(key, value)
        used = [
            events.Event("LowerOperators", name, "done", f"{count} calls")
            for name, count in sorted(lowerer.used.items())
        ]
        return relax.transform.DeadCodeElimination()(events.record(out, used))


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target
        self.rules = RULES[target.backend]
        self.used: Counter[str] = Counter()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, Op) or call.op.name not in self.rules:
            return call
        kernel = self.rules[call.op.name](call, self.target)
        if kernel is None:
            return call
        gv = self.builder_.add_func(kernel.func, kernel.name)
        self.used[str(gv.name_hint)] += 1
        return _call(gv, kernel)


def _call(gv: relax.GlobalVar, kernel: Kernel) -> relax.Call:
    if kernel.inplace:
        return relax.call_tir_inplace(
            gv, list(kernel.args), list(kernel.inplace), list(kernel.results)
        )
    return relax.call_tir(gv, list(kernel.args), list(kernel.results))
