"""End the life of `mlc.weight`: weights become one tuple parameter, and the plan is written.

    f(x): mlc.weight(..)   ->   f(x, params): vm.builtin.tuple_getitem(params, 3)

All functions take the same tuple, in the natural order of the weights' names (layer 10
after layer 9). The module attribute `mlc.weight_plan` holds the WeightPlan as JSON: which
tensors are joined, how they are packed and where the bytes lie.

The parameter is opaque to Relax: a tuple type would make every call check the shape of all
weights, some hundreds, in each function, for every token. The plan is checked once, when
weights are loaded.
"""

from typing import Final

import msgspec
from tvm import IRModule, relax
from tvm.ir import StringImm
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.artifact import PlannedTensor, WeightPlan
from mlc_compile.layout import Shapes, place
from mlc_compile.passes.rewrite import bindings_of, relax_functions, rewrite_functions

ATTRIBUTE: Final = "mlc.weight_plan"
PARAMS: Final = "params"

Key = tuple[tuple[str, ...], str]  # sources and part: what makes two uses the same parameter


@module_pass(opt_level=0, name="BindWeights")
class BindWeights:
    """Number the weights and read them from the last parameter."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        weights = _weights(mod)
        if not weights:
            return mod
        index = {(w.sources, w.part): i for i, w in enumerate(weights)}

        def rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
            params = relax.Var(PARAMS, relax.AnyType())
            body = _Binder(mod, params, index).visit_expr(func.body)
            return relax.Function([*func.params, params], body, None, func.is_pure, func.attrs)

        plan = msgspec.json.encode(_plan(weights)).decode()
        return rewrite_functions(mod, rewrite).with_attr(ATTRIBUTE, StringImm(plan))


def read_plan(mod: IRModule) -> WeightPlan:
    """The plan that `BindWeights` left."""
    return msgspec.json.decode(str(mod.attrs[ATTRIBUTE].value), type=WeightPlan)


def _weights(mod: IRModule) -> list[ops.Weight]:
    """Every distinct part, the parts of one tensor together, tensors in order of their names."""
    tensors: dict[tuple[str, ...], dict[str, ops.Weight]] = {}
    for _, func in relax_functions(mod):
        for value in bindings_of(func).values():
            if ops.is_call(value, "mlc.weight"):
                w = ops.Weight.of(value)
                first = tensors.setdefault(w.sources, {}).setdefault(w.part, w)
                assert w == first, f"{w} is one parameter with {first}: readers want one form"
    ordered = sorted(tensors.items(), key=lambda item: _natural_order(item[0]))
    return [w for _, parts in ordered for w in parts.values()]


def _natural_order(sources: tuple[str, ...]) -> tuple[tuple[int, int | str], ...]:
    """A sorting key for checkpoint names that puts layer 10 after layer 9."""
    pieces = sources[0].split(".")
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in pieces)


def _plan(weights: list[ops.Weight]) -> WeightPlan:
    by_tensor: dict[tuple[str, ...], list[ops.Weight]] = {}
    for w in weights:
        by_tensor.setdefault(w.sources, []).append(w)
    tensors, end = [], 0
    for sources, parts in by_tensor.items():
        name = joined_name(sources)
        shapes: Shapes = {w.part: (w.shape, w.dtype) for w in parts}
        placed, end = place(name, shapes, end)
        tensors.append(
            PlannedTensor(name=name, sources=sources, layout=parts[0].layout, parts=placed)
        )
    return WeightPlan(tensors=tuple(tensors), nbytes=end)


def joined_name(sources: tuple[str, ...]) -> str:
    """`a.q_proj.weight`, `a.k_proj.weight` -> `a.q_proj+k_proj`: short, and unique."""
    stems = [s.removesuffix(".weight") for s in sources]
    return "+".join([stems[0], *(s.rpartition(".")[2] for s in stems[1:])])


@mutator
class _Binder(PyExprMutator):
    def __init__(self, mod: IRModule, params: relax.Var, index: dict[Key, int]) -> None:
        super().__init__(mod)
        self.params = params
        self.index = index

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "mlc.weight"):
            return super().visit_call_(call)
        w = ops.Weight.of(call)
        position = relax.prim_value(self.index[w.sources, w.part])
        return relax.call_pure_packed(
            "vm.builtin.tuple_getitem",
            self.params,
            position,
            ty_args=relax.TensorType(list(w.shape), w.dtype),
        )
