"""Drop a concat that puts together exactly what a split took apart.

    concat(split(x)[0], .., split(x)[-1])   ->   x

What MergeProjections leaves where q, k and v met anyway. Any other order, axis or subset
of the pieces stays.
"""

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Bindings, bindings_of, call_of, mutate, rewrite_functions


@module_pass(opt_level=0, name="CancelSplitConcat")
class CancelSplitConcat:
    """Replace concat(split(x)) by x wherever nothing moves."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return rewrite_functions(mod, _rewrite)


def _rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
    return mutate(_Canceler(mod, bindings_of(func)), func)


@mutator
class _Canceler(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings) -> None:
        super().__init__(mod)
        self.bindings = bindings

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        source = _undone(call, self.bindings)
        return super().visit_call_(call) if source is None else self.visit_expr(source)


def _undone(call: relax.Call, bindings: Bindings) -> relax.Expr | None:
    """x, if `call` is concat(split(x)) on one axis and in order."""
    if not ops.is_call(call, "relax.concat"):
        return None
    pieces = [call_of(f, bindings) for f in _fields(call.args[0], bindings)]
    if not all(isinstance(p, relax.TupleGetItem) for p in pieces):
        return None
    splits = {p.tuple_value for p in pieces}
    if len(splits) != 1:
        return None
    split = call_of(splits.pop(), bindings)
    if not ops.is_call(split, "relax.split"):
        return None
    rank = len(ops.shape_of(split.args[0]))
    in_order = [p.index for p in pieces] == list(range(len(split.ty.fields)))
    one_axis = int(call.attrs.axis) % rank == int(split.attrs.axis) % rank
    return split.args[0] if in_order and one_axis else None


def _fields(expr: relax.Expr, bindings: Bindings) -> list[relax.Expr]:
    value = call_of(expr, bindings)
    return list(value.fields) if isinstance(value, relax.Tuple) else []
