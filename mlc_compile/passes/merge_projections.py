"""Join linear layers that read the same tensor into one: q, k, v; gate, up.

    linear(x, w1), linear(x, w2)   ->   split(linear(x, rows of w1 then w2))

One matmul reads x once and runs over more rows. The joined weight names its sources, so
the rows are put together when weights are packed, never at run time. Runs before
QuantizeWeights: every scheme here treats rows independently.
"""

from dataclasses import replace

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.rewrite import bindings_of, mutate, relax_functions, rewrite_functions

Siblings = dict[relax.Var, tuple[tuple[relax.Var, ...], tuple[ops.Weight, ...]]]


@module_pass(opt_level=0, name="MergeProjections")
class MergeProjections:
    """Join every group of two or more plain linear layers with one input."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        groups = [_siblings(f) for _, f in relax_functions(mod)]
        done = [
            events.Event("MergeProjections", " + ".join(w.sources[0] for w in weights), "done")
            for group in groups
            for _, weights in group.values()
        ]
        return events.record(rewrite_functions(mod, _rewrite), done)


def _rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
    groups = _siblings(func)
    return mutate(_Merger(mod, groups), func) if groups else func


def _siblings(func: relax.Function) -> Siblings:
    """Input -> the linear layers that read it and their weights, where there are several."""
    bindings = bindings_of(func)
    found: dict[relax.Var, list[tuple[relax.Var, ops.Weight]]] = {}
    for var, value in bindings.items():
        if not ops.is_call(value, "mlc.linear"):
            continue
        x, w = value.args
        bound = bindings.get(w)
        if ops.is_call(bound, "mlc.weight"):
            found.setdefault(x, []).append((var, ops.Weight.of(bound)))
    return {
        x: (tuple(v for v, _ in group), tuple(w for _, w in group))
        for x, group in found.items()
        if len(group) > 1
    }


@mutator
class _Merger(PyExprMutator):
    def __init__(self, mod: IRModule, groups: Siblings) -> None:
        super().__init__(mod)
        self.groups = groups
        self.outputs: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if not ops.is_call(value, "mlc.linear") or value.args[0] not in self.groups:
            super().visit_var_binding_(binding)
            return
        if binding.var not in self.outputs:
            self._merge(value.args[0])
        self.set_var_remap(binding.var, self.builder_.emit(self.outputs[binding.var]))

    def _merge(self, x: relax.Var) -> None:
        members, weights = self.groups[x]
        rows = [w.shape[0] for w in weights]
        joined = replace(
            weights[0],
            sources=tuple(s for w in weights for s in w.sources),
            shape=(sum(rows), *weights[0].shape[1:]),
        )
        weight = self.builder_.emit(ops.weight(joined))
        y = self.builder_.emit(ops.linear(self.visit_expr(x), weight))
        bounds = [sum(rows[:i]) for i in range(1, len(rows))]
        split = self.builder_.emit(relax.op.split(y, bounds, axis=-1))
        for i, member in enumerate(members):
            self.outputs[member] = relax.TupleGetItem(split, i)
