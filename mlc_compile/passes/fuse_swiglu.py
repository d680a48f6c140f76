"""Fuse the gated activation of an MLP whose gate and up projections were merged.

    g, u = split(y, 2, axis=-1);  silu(g) * u   ->   swiglu(y)

y is read once and neither half is copied out. Must run after MergeProjections. Halves of
different size or order, another axis, or another activation stay as they are.
"""

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Bindings, bindings_of, call_of, mutate, rewrite_functions


@module_pass(opt_level=0, name="FuseSwiGLU")
class FuseSwiGLU:
    """Replace silu(first half) · (second half) by one operator."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return rewrite_functions(mod, _rewrite)


def _rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
    return mutate(_Fuser(mod, bindings_of(func)), func)


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings) -> None:
        super().__init__(mod)
        self.bindings = bindings

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        source = _gate_up(call, self.bindings)
        if source is None:
            return super().visit_call_(call)
        return ops.swiglu(self.visit_expr(source))


def _gate_up(call: relax.Call, bindings: Bindings) -> relax.Expr | None:
    """y, if `call` is silu(split(y)[0]) * split(y)[1] with equal halves of the last axis."""
    if not ops.is_call(call, "relax.multiply"):
        return None
    left, right = (call_of(a, bindings) for a in call.args)
    gate, up = (left, right) if ops.is_call(left, "relax.nn.silu") else (right, left)
    if not ops.is_call(gate, "relax.nn.silu"):
        return None
    halves = (call_of(gate.args[0], bindings), up)
    if not all(isinstance(h, relax.TupleGetItem) for h in halves):
        return None
    if [h.index for h in halves] != [0, 1] or halves[0].tuple_value != halves[1].tuple_value:
        return None
    split = call_of(halves[0].tuple_value, bindings)
    if not ops.is_call(split, "relax.split") or not _halves_last_axis(split):
        return None
    return split.args[0]


def _halves_last_axis(split: relax.Call) -> bool:
    rank = len(ops.shape_of(split.args[0]))
    if int(split.attrs.axis) % rank != rank - 1 or len(split.ty.fields) != 2:
        return False
    first, second = (f.shape.values[-1] for f in split.ty.fields)
    return int(first) == int(second)
