"""Turn the tuple of weights that ends each function into `mlc.weight` operators.

    f(x, packed): packed[3]   ->   f(x): mlc.weight(sources=["model.norm.weight"])

Runs first: every later pass finds a weight by its attributes, whatever function it is in.
"""

from dataclasses import dataclass

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import rewrite_functions


@module_pass(opt_level=0, name="NameWeights")
@dataclass(frozen=True)
class NameWeights:
    """`names[i]` is the checkpoint's name of field i of each function's last parameter."""

    names: tuple[str, ...]

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return rewrite_functions(mod, self._function)

    def _function(self, mod: IRModule, func: relax.Function) -> relax.Function:
        if not self._is_packed(func):
            return func
        *params, packed = func.params
        body = _Namer(mod, packed, self.names).visit_expr(func.body)
        renamed = relax.Function(params, body, None, func.is_pure, func.attrs)
        return renamed.without_attr("num_input")  # it counted the parameters before the tuple

    def _is_packed(self, func: relax.Function) -> bool:
        """Whether `func` ends with the tuple; not the second time."""
        last = func.params[-1].ty if func.params else None
        return isinstance(last, relax.TupleType) and len(last.fields) == len(self.names)


@mutator
class _Namer(PyExprMutator):
    def __init__(self, mod: IRModule, packed: relax.Var, names: tuple[str, ...]) -> None:
        super().__init__(mod)
        self.packed = packed
        self.names = names

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        if not item.tuple_value.same_as(self.packed):
            return super().visit_tuple_getitem_(item)
        field = self.packed.ty.fields[item.index]
        return ops.weight(
            ops.Weight(
                sources=(self.names[item.index],),
                part="weight",
                layout=ops.RAW,
                shape=tuple(int(s) for s in field.shape.values),
                dtype=str(field.dtype),
            )
        )
