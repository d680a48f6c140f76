"""Drop a concat that puts together exactly what a split took apart.

    concat(split(x)[0], .., split(x)[-1])   ->   x

What MergeProjections leaves where q, k and v met anyway. Any other order, axis or subset
of the pieces stays.
"""

from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Bindings, Fuser, call_of, fuse_functions

CONCAT: Final = "relax.concat"


@module_pass(opt_level=0, name="CancelSplitConcat")
class CancelSplitConcat:
    """Replace concat(split(x)) by x wherever nothing moves."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Canceler)


@mutator
class _Canceler(Fuser):
    step: ClassVar[str] = "CancelSplitConcat"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        split = _split_of(call, self.bindings)
        if split is None:
            return super().visit_call_(call)
        reason = _moves(call, split, self.bindings)
        if reason is not None:
            self.refused(CONCAT, reason)
            return super().visit_call_(call)
        self.done(CONCAT)
        return self.visit_expr(split.args[0])


def _split_of(call: relax.Call, bindings: Bindings) -> relax.Call | None:
    """The split that all operands of a concat are pieces of."""
    if not ops.is_call(call, CONCAT):
        return None
    pieces = _pieces(call, bindings)
    if not all(isinstance(p, relax.TupleGetItem) for p in pieces):
        return None
    sources = {p.tuple_value for p in pieces}
    split = call_of(sources.pop(), bindings) if len(sources) == 1 else None
    return split if ops.is_call(split, "relax.split") else None


def _moves(concat: relax.Call, split: relax.Call, bindings: Bindings) -> str | None:
    """Why the concat is not the split undone, if it is not."""
    rank = len(ops.shape_of(split.args[0]))
    if int(concat.attrs.axis) % rank != int(split.attrs.axis) % rank:
        return "it joins along another axis than the split's"
    if [p.index for p in _pieces(concat, bindings)] != list(range(len(split.ty.fields))):
        return "it joins other pieces than the split's, or in another order"
    return None


def _pieces(concat: relax.Call, bindings: Bindings) -> list[relax.Expr]:
    value = call_of(concat.args[0], bindings)
    fields = list(value.fields) if isinstance(value, relax.Tuple) else []
    return [call_of(f, bindings) for f in fields]
