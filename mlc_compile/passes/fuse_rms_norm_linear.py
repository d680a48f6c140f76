"""RMSNorm inside the linear layer that reads it: the normalized tensor is never written.

    quantized_matmul(rms_norm(x, gamma), w)   ->   quantized_matmul(x, gamma, w; rms_norm)

since  y[i, n] = (sum over k of x[i, k] gamma[k] w[n, k]) · rsqrt(mean(x[i]²) + eps):  gamma
multiplies on the way into the product, and the row's factor commutes with it. The weights,
quantized or not, stay as they are. Where the linear layer quantizes its activations, the norm
is part of that instead (FuseQuantizeSource), and no norm is left here.

Runs after MergeProjections, which makes q, k and v, or gate and up, one reader; a norm that
has several readers all the same is not fused, as each would repeat it. Only Relax's own
rms_norm over the last axis is meant: its epsilon goes along. An L2 norm, a softmax or a
LayerNorm are other operators, and stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes import cost
from mlc_compile.passes.rewrite import TargetFuser, call_of, fuse_functions
from mlc_compile.target import Target

NORM: Final = "relax.nn.rms_norm"
MATMUL: Final = "mlc.quantized_matmul"


@module_pass(opt_level=0, name="FuseRMSNormLinear")
@dataclass(frozen=True)
class FuseRMSNormLinear:
    """Every RMSNorm into the one `mlc.quantized_matmul` that reads it, where that pays."""

    target: Target

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, partial(_Fuser, target=self.target))


@mutator
class _Fuser(TargetFuser):
    step: ClassVar[str] = "FuseRMSNormLinear"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, MATMUL) or call.attrs["source"] != "plain":
            return super().visit_call_(call)
        x, *rest = call.args
        norm = call_of(x, self.bindings)
        if not ops.is_call(norm, NORM):
            return super().visit_call_(call)
        reason = self._refusal(x, norm, call)
        if reason is not None:
            self.refused(NORM, reason)
            return super().visit_call_(call)
        self.done(NORM)
        source = ops.Source("rms_norm", _width(x), float(norm.attrs.epsilon))
        return ops.with_source(call, self._visited(norm.args), source, self._visited(rest))

    def _visited(self, args: Sequence[relax.Expr]) -> list[relax.Expr]:
        return [self.visit_expr(a) for a in args]

    def _refusal(self, normal: relax.Var, norm: relax.Call, matmul: relax.Call) -> str | None:
        """Why `matmul` cannot normalize what it reads itself."""
        if not ops.norms_rows(norm):
            return "it does not normalize the rows of a tensor [1, m, k]"
        mismatch = _mismatch(*norm.args)
        if mismatch is not None:
            return mismatch
        if self.uses[normal] > 1:
            return f"it has other readers: each of {self.uses[normal]} would repeat it"
        if self.target.device is not None:
            one = ops.is_one_row(matmul)
            return None if one else "the kernel for more than one row takes x as it is"
        sizes = cost.Matmul.of(matmul, _width(normal))
        return cost.norm_in_matmul(self.target, sizes).refusal


def _mismatch(x: relax.Expr, gamma: relax.Expr) -> str | None:
    """What of x and gamma the kernels do not take: they want float32 [1, m, k] and [k]."""
    types = [str(t.ty.dtype) for t in (x, gamma)]
    if types != [ops.COMPUTE_DTYPE] * 2:
        return f"x is {types[0]} and gamma {types[1]}: kernels take {ops.COMPUTE_DTYPE}"
    shape = [int(s) for s in ops.shape_of(gamma)]
    return None if shape == [_width(x)] else f"gamma has the shape {shape}, x {_width(x)} columns"


def _width(x: relax.Expr) -> int:
    return int(ops.shape_of(x)[-1])
