"""Do beside the matmul what comes after it and, when one token is decoded, before it.

    quantized_matmul(rms_norm(x, gamma), parts)   ->   quantized_gemv(x, gamma, parts; rms_norm)
    swiglu(quantized_matmul(x, parts))            ->   quantized_gemv(x, parts; swiglu)

and both at once, for one row: there every block of threads repeats the norm, a few values a
thread, which costs less than a launch; many rows would repeat it too often. SwiGLU needs gate
and up of one output in one thread, whatever the number of rows:

    swiglu(quantized_matmul(x, parts))            ->   quantized_matmul(x, parts; swiglu)

Only if the matmul is the norm's only reader, and SwiGLU the matmul's.
"""

from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.passes.fuse_quantize_source import source_of
from mlc_compile.passes.rewrite import Fuser, call_of, fuse_functions

MATMUL: Final = "mlc.quantized_matmul"


@module_pass(opt_level=0, name="FuseGemv")
class FuseGemv:
    """Every `mlc.quantized_matmul` with a SwiGLU after it or, of a single row, a norm before it."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseGemv"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if ops.is_call(call, MATMUL) and ops.is_one_row(call):
            fused = self._fused(call, swiglu=bool(call.attrs["swiglu"]))
            return super().visit_call_(call) if fused is None else fused
        if ops.is_call(call, "mlc.swiglu"):
            matmul = call_of(call.args[0], self.bindings)
            if ops.is_call(matmul, MATMUL) and self._takes_swiglu(call.args[0], matmul):
                self.done("mlc.swiglu")
                return self._with_swiglu(matmul)
        return super().visit_call_(call)

    def _takes_swiglu(self, product: relax.Var, matmul: relax.Call) -> bool:
        if matmul.attrs["residual"]:
            self.refused("mlc.swiglu", "a residual is added before it")
        elif matmul.attrs["swiglu"]:
            self.refused("mlc.swiglu", "another SwiGLU comes before it")
        elif self.uses[product] > 1:
            self.refused("mlc.swiglu", "what it reads has other readers")
        else:
            return True
        return False

    def _with_swiglu(self, matmul: relax.Call) -> relax.Call:
        if ops.is_one_row(matmul):
            return self._fused(matmul, swiglu=True)
        x, *parts = (self.visit_expr(a) for a in matmul.args)
        return ops.quantized_matmul(x, parts, ops.Matrix.of(matmul), swiglu=True)

    def _fused(self, matmul: relax.Call, *, swiglu: bool) -> relax.Call | None:
        """`matmul` as a `mlc.quantized_gemv`; None if nothing would become part of it."""
        x, *rest = matmul.args
        source, inputs = self._source_of(x)
        if source.kind == "plain" and not swiglu:
            return None
        return ops.quantized_gemv(
            [self.visit_expr(a) for a in inputs],
            [self.visit_expr(a) for a in rest],
            source,
            matmul,
            swiglu=swiglu,
        )

    def _source_of(self, x: relax.Var) -> tuple[ops.Source, list[relax.Expr]]:
        """How the matmul gets x, and from what."""
        plain = ops.Source("plain", int(ops.shape_of(x)[-1])), [x]
        norm = call_of(x, self.bindings)
        made = source_of(norm) if ops.is_call(norm, "relax.nn.rms_norm") else None
        if made is None:
            return plain
        if self.uses[x] > 1:
            self.refused("relax.nn.rms_norm", "it has other readers")
            return plain
        self.done("relax.nn.rms_norm")
        return made, list(norm.args)
