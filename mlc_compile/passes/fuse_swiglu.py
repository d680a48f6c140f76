"""Fuse the gated activation of an MLP whose gate and up projections were merged.

    g, u = split(y, 2, axis=-1);  silu(g) * u   ->   swiglu(y)

y is read once and neither half is copied out. Must run after MergeProjections. Halves of
different size or order, another axis, another activation or another type stay as they are.
"""

from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Bindings, Fuser, call_of, fuse_functions

SILU: Final = "relax.nn.silu"


@module_pass(opt_level=0, name="FuseSwiGLU")
class FuseSwiGLU:
    """Replace silu(first half) · (second half) by one operator."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseSwiGLU"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        gated = _gated(call, self.bindings)
        if gated is None:
            return super().visit_call_(call)
        split = _split_into(*gated, self.bindings)
        halved = split.args[0] if split is not None and _halves_last_axis(split) else None
        reason = _refusal(halved)
        if reason is not None:
            self.refused(SILU, reason)
            return super().visit_call_(call)
        self.done(SILU)
        return ops.swiglu(self.visit_expr(halved))


def _gated(call: relax.Call, bindings: Bindings) -> tuple[relax.Expr, relax.Expr] | None:
    """(gate, up), if `call` is silu(gate) * up in either order."""
    if not ops.is_call(call, "relax.multiply"):
        return None
    left, right = (call_of(a, bindings) for a in call.args)
    silu, up = (left, right) if ops.is_call(left, SILU) else (right, left)
    return (call_of(silu.args[0], bindings), up) if ops.is_call(silu, SILU) else None


def _split_into(gate: relax.Expr, up: relax.Expr, bindings: Bindings) -> relax.Call | None:
    """The split whose first two results are `gate` and `up`."""
    halves = (gate, up)
    if not all(isinstance(h, relax.TupleGetItem) for h in halves):
        return None
    if [h.index for h in halves] != [0, 1] or gate.tuple_value != up.tuple_value:
        return None
    split = call_of(gate.tuple_value, bindings)
    return split if ops.is_call(split, "relax.split") else None


def _refusal(halved: relax.Expr | None) -> str | None:
    """Why gate and up, which are halves of `halved` if that is one tensor, stay apart."""
    if halved is None:
        return "gate and up are not the halves of one tensor's last axis"
    if not ops.in_compute_dtype(halved):
        return f"it is {halved.ty.dtype}: kernels take {ops.COMPUTE_DTYPE}"
    return None


def _halves_last_axis(split: relax.Call) -> bool:
    rank = len(ops.shape_of(split.args[0]))
    if int(split.attrs.axis) % rank != rank - 1 or len(split.ty.fields) != 2:
        return False
    first, second = (f.shape.values[-1] for f in split.ty.fields)
    return int(first) == int(second)
