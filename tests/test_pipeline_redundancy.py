"""A model that is written with detours compiles to the kernels of the model without them."""

import pytest
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.passes import events
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.passes.rewrite import bindings_of, mutate, relax_functions
from mlc_compile.pipeline import phases

SIMPLIFYING = ("FoldConstants", "SimplifyAlgebra", "EliminateCommonSubexpressions")


@mutator
class Detours(PyExprMutator):
    """Each linear layer normalizes for itself, and reads the norm by a way that leads nowhere."""

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if not ops.is_call(call, "mlc.linear"):
            return call
        x, w = call.args
        norm = self.lookup_binding(x)
        if ops.is_call(norm, "relax.nn.rms_norm"):
            x = self._emit(relax.Call(norm.op, norm.args, norm.attrs))
        return ops.linear(self._detour(x), w)

    def _detour(self, x):
        b, n, k = ops.shape_of(x)
        half = relax.const(0.5, "float32")
        one = self._emit(relax.op.add(half, half))
        x = self._emit(relax.op.reshape(x, (n, k)))
        x = self._emit(relax.op.permute_dims(self._emit(relax.op.permute_dims(x))))
        x = self._emit(relax.op.astype(self._emit(relax.op.astype(x, "float64")), "float32"))
        x = self._emit(relax.op.multiply(x, one))
        return self._emit(relax.op.reshape(x, (b, n, k)))

    def _emit(self, expr):
        return self.builder_.emit(expr)


def with_detours(mod):
    out = tvm.IRModule(mod.functions, attrs=mod.attrs)
    for gv, func in relax_functions(mod):
        out[gv] = mutate(Detours(mod), func)
    return out


def run(mod, plan, last):
    with tvm_target(plan.target):
        for phase in phases(plan):
            for step in phase.passes:
                mod = step(mod)
            if phase.name == last:
                return mod
    raise AssertionError(last)


@pytest.mark.parametrize("scheme", ["q4f16_1", "q0f32"])
def test_detours_leave_no_trace(nano_plan, nano_after, scheme):
    mod, plan = nano_plan("cpu", scheme)
    got = run(with_detours(mod), plan, "kernels")
    clean = nano_after("kernels", "cpu", scheme)
    tvm.ir.assert_structural_equal(*(m.without_attr(events.ATTRIBUTE) for m in (got, clean)))
    done = {e.source for e in events.read(got) if e.outcome == "done"}
    assert done >= set(SIMPLIFYING)


# Pass -> what is in the graph more often without it.
LEFT = {
    "FoldConstants": "relax.multiply",
    "SimplifyAlgebra": "relax.permute_dims",
    "EliminateCommonSubexpressions": "relax.nn.rms_norm",
}


@pytest.mark.parametrize("name", SIMPLIFYING)
def test_each_of_the_passes_is_needed(nano_plan, nano_after, name):
    mod, plan = nano_plan("cpu", "q4f16_1", disabled=(name,))
    got = run(with_detours(mod), plan, "graph")
    assert count(got, LEFT[name]) > count(nano_after("graph", "cpu", "q4f16_1"), LEFT[name])


def test_projections_of_one_norm_are_joined_only_if_it_is_one(nano_plan, nano_after):
    mod, plan = nano_plan("cpu", "q4f16_1", disabled=("EliminateCommonSubexpressions",))
    got = run(with_detours(mod), plan, "graph")
    joined, apart = (
        len(read_plan(m).tensors) for m in (nano_after("graph", "cpu", "q4f16_1"), got)
    )
    # Two layers: q, k, v were one of three, gate and up one of two.
    assert apart == joined + 2 * (2 + 1)


def count(mod, name):
    return sum(ops.is_call(v, name) for v in bindings_of(mod["decode"]).values())


@pytest.mark.parametrize("target", ["cpu", "cuda-sm90", "webgpu"])
def test_the_model_as_we_write_it_has_none(nano_after, target):
    """They find nothing in it, on any target: its author made no detour."""
    noted = events.read(nano_after("kernels", target, "q4f16_1"))
    assert [e for e in noted if e.source in SIMPLIFYING] == []
