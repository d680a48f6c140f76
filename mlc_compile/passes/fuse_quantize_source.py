"""Compute what feeds a quantization on the way into it, so that it is never written.

    quantize_act(rms_norm(x, gamma))   ->   quantize_act(x, gamma; rms_norm)
    quantize_act(swiglu(gate_up))      ->   quantize_act(gate_up; swiglu)

Only where the quantization is the only reader: otherwise the tensor is needed anyway, and
an event says so, as it does of what is not float32.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.rewrite import Fuser, call_of, first_reason, fuse_functions


@module_pass(opt_level=0, name="FuseQuantizeSource")
class FuseQuantizeSource:
    """RMSNorm and SwiGLU into their only reader."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseQuantizeSource"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not ops.is_call(call, "mlc.quantize_act") or call.attrs["source"] != "plain":
            return super().visit_call_(call)
        producer = call_of(call.args[0], self.bindings)
        made = source_of(producer)
        if made is None:
            return super().visit_call_(call)
        name = str(producer.op.name)
        types = {str(a.ty.dtype) for a in producer.args}
        reasons = {
            "it has other readers": self.uses[call.args[0]] > 1,
            f"it is {', '.join(sorted(types))}: kernels take {ops.COMPUTE_DTYPE}": (
                not ops.in_compute_dtype(*producer.args)
            ),
        }
        reason = first_reason(reasons)
        if reason is not None:
            self.refused(name, reason)
            return super().visit_call_(call)
        self.done(name)
        inputs = [self.visit_expr(a) for a in producer.args]
        return ops.quantize_act(inputs, made, ops.Grouping.of(call))


def source_of(producer: relax.Expr) -> ops.Source | None:
    """How to compute `producer` while quantizing, if that is known."""
    for op_name, describe in SOURCES.items():
        if ops.is_call(producer, op_name):
            return describe(producer)
    return None


def _rms_norm(call: relax.Call) -> ops.Source | None:
    if not ops.norms_rows(call):
        return None
    return ops.Source("rms_norm", int(ops.shape_of(call)[-1]), float(call.attrs.epsilon))


def _swiglu(call: relax.Call) -> ops.Source | None:
    return ops.Source("swiglu", int(ops.shape_of(call)[-1]))


SOURCES: Final[dict[str, Callable[[relax.Call], ops.Source | None]]] = {
    "relax.nn.rms_norm": _rms_norm,
    "mlc.swiglu": _swiglu,
}
