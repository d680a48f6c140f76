"""Apply SwiGLU where gate's and up's sums are still in registers.

    y = quantized_matmul(x, parts);  swiglu(y)       ->   quantized_matmul(x, parts; swiglu)

on GPUs, whatever the number of rows. On CPUs, when one token is decoded:

    y = int8_gemv(x, parts);  swiglu(y)              ->   int8_gemv(x, parts; swiglu)
    y = int8_gemv(x, parts);  quantize_act(y; swiglu)
        ->   quantize_act(int8_gemv(x, parts; swiglu); plain)
    y = int8_gemv(x, parts);  int8_gemv(y, down; swiglu)
        ->   int8_gemv(int8_gemv(x, parts; swiglu), down; plain)

y, of 2 i values, is never written, and silu is computed once a value and not once in each
thread that quantizes. Must run after FuseQuantizeGemv, which makes the operator that has this
epilogue on CPUs; where it does not apply, SwiGLU stays with its reader, as FuseQuantizeSource
left it. Only if nothing else reads y, no residual is added to it, and on a CPU its halves are
whole row blocks, gate's and up's sums fit the registers together, and half as many tasks are
still enough (`cost.swiglu_in_gemv`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.layout import ROWS
from mlc_compile.passes import cost
from mlc_compile.passes.rewrite import TargetFuser, first_reason, fuse_functions
from mlc_compile.passes.values import behind
from mlc_compile.target import Target

SWIGLU: Final = "mlc.swiglu"
GEMV: Final = "mlc.int8_gemv"
MATMUL: Final = "mlc.quantized_matmul"
MATMULS: Final = (GEMV, "mlc.int8_matmul", MATMUL)
READERS: Final = (GEMV, "mlc.quantize_act")  # which may have SwiGLU as their source


@module_pass(opt_level=0, name="FuseSwiGLUEpilogue")
@dataclass(frozen=True)
class FuseSwiGLUEpilogue:
    """Every SwiGLU, alone or as a source, of what a matmul gives whose kernel has it."""

    target: Target

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, partial(_Fuser, target=self.target))


@mutator
class _Fuser(TargetFuser):
    step: ClassVar[str] = "FuseSwiGLUEpilogue"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        gated = _reads_swiglu(call)
        product = call.args[0] if gated else None
        call = super().visit_call_(call)
        # As it is now: the matmul may itself have read a SwiGLU.
        matmul = behind(call.args[0], self.builder_) if isinstance(product, relax.Var) else None
        name = next((name for name in MATMULS if ops.is_call(matmul, name)), None)
        if name is None:
            return call
        reason = self._refusal(matmul, product)
        if reason is not None:
            self.refused(SWIGLU, reason)
            return call
        self.done(SWIGLU)
        return self._without_swiglu(call, EPILOGUES[name](matmul))

    def _refusal(self, matmul: relax.Call, product: relax.Var) -> str | None:
        """Why SwiGLU of `product` cannot be what `matmul` writes, or should not."""
        half, on_cpu = int(matmul.attrs["n"]) // 2, self.target.device is None
        reasons = {
            "it has, or may have, several rows": on_cpu and not ops.is_one_row(matmul),
            "the matmul before it does not quantize": on_cpu and not ops.is_call(matmul, GEMV),
            "a residual is added before it": bool(matmul.attrs["residual"]),
            "another SwiGLU comes before it": bool(matmul.attrs.get("swiglu", False)),
            "what it reads has other readers": self.uses[product] > 1,
            f"its {half} columns are not a multiple of {ROWS}": on_cpu and half % ROWS != 0,
        }
        reason = first_reason(reasons)
        if reason is not None or not on_cpu:
            return reason
        sizes = cost.Matmul.of(matmul, int(matmul.attrs["k"]))
        return cost.swiglu_in_gemv(self.target, sizes).refusal

    def _without_swiglu(self, reader: relax.Call, fused: relax.Call) -> relax.Call:
        """`reader` where SwiGLU is done already, by `fused`."""
        if ops.is_call(reader, SWIGLU):
            return fused
        inputs, plain = [self.builder_.emit(fused)], ops.Source("plain", int(reader.attrs["k"]))
        if ops.is_call(reader, GEMV):
            swiglu = bool(reader.attrs["swiglu"])
            return ops.int8_gemv(inputs, reader.args[1:], plain, reader, swiglu=swiglu)
        return ops.quantize_act(inputs, plain, ops.Grouping.of(reader))


def _reads_swiglu(call: relax.Call) -> bool:
    """Whether `call` is SwiGLU of its first argument, or begins with it."""
    if ops.is_call(call, SWIGLU):
        return True
    return any(ops.is_call(call, name) for name in READERS) and call.attrs["source"] == "swiglu"


def _of_gemv(gemv: relax.Call) -> relax.Call:
    source = ops.Source.of(gemv)
    inputs = ops.SOURCES[source.kind]
    return ops.int8_gemv(gemv.args[:inputs], gemv.args[inputs:], source, gemv, swiglu=True)


def _of_matmul(matmul: relax.Call) -> relax.Call:
    return ops.with_swiglu(matmul, matmul.args)


EPILOGUES: Final[dict[str, Callable[[relax.Call], relax.Call]]] = {
    GEMV: _of_gemv,
    MATMUL: _of_matmul,
}
