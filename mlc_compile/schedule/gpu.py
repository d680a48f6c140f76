"""The rules of GPU targets: which kernel family runs each `mlc.*` operator.

One table for every backend: kernels are sized by `target.Device`, whichever code generator
prints them.
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.quant import find_scheme
from mlc_compile.schedule.kernels.gpu import activation, embedding, gemm, gemv, norm
from mlc_compile.schedule.kernels.gpu.slots import PLAIN, Source
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from mlc_compile.schedule.rule import Kernel, Rule, plain, rows_of
from mlc_compile.target import Device, Target

# Each layer asks for the same few.
_gemm: Callable[..., tirx.PrimFunc] = cache(gemm.gemm)
_gemv: Callable[..., tirx.PrimFunc] = cache(gemv.gemv)


def _matmul(call: relax.Call, target: Target) -> Kernel:
    x, w, source = call.args[0], ops.Matrix.of(call), ops.Source.of(call)
    device, dtype = _device(target), x.ty.dtype
    codec = codec_of(w.scheme, w.n, source.k, target.binding_bytes)
    residual, swiglu = bool(call.attrs["residual"]), bool(call.attrs["swiglu"])
    if ops.is_one_row(x):
        func = _gemv(
            codec,
            w.n,
            device,
            x_dtype=dtype,
            source=SOURCES[source.kind](source.eps),
            residual=residual,
            swiglu=swiglu,
        )
        return plain("gemv", func, call)
    assert source.kind == "plain", "FuseRMSNormLinear leaves several rows on a GPU"
    func = _gemm(
        codec,
        w.n,
        device,
        x_dtype=dtype,
        compute=find_scheme(w.scheme).norm_dtype,  # as precise as what is not quantized
        residual=residual,
        swiglu=swiglu,
    )
    return plain("gemm", func, call)


def _take(call: relax.Call, target: Target) -> Kernel:
    w = ops.Matrix.of(call)
    codec = codec_of(w.scheme, w.n, int(call.attrs["k"]), target.binding_bytes)
    return plain("take", embedding.take(codec, _device(target)), call)


def _rms_norm(call: relax.Call, target: Target) -> Kernel | None:
    x, gamma = call.args
    if not ops.norms_rows(call) or not ops.in_compute_dtype(x, gamma):
        return None
    k, eps = int(ops.shape_of(x)[-1]), float(call.attrs.epsilon)
    return plain("rms_norm", norm.rms_norm(k, eps, rows_of(x), _device(target)), call)


def _qk_norm(call: relax.Call, target: Target) -> Kernel:
    a, dtype = ops.Attention.of(call), str(call.attrs["dtype"])
    func = norm.qk_norm(a, dtype, rows_of(call.args[0]), _device(target))
    return plain("qk_norm", func, call)


def _swiglu(call: relax.Call, target: Target) -> Kernel:
    i = int(ops.shape_of(call)[-1])
    return plain("swiglu", activation.swiglu(i, rows_of(call), _device(target)), call)


SOURCES: Final[dict[str, Callable[[float], Source]]] = {  # by ops.Source.kind; given eps
    "plain": lambda _eps: PLAIN,
    "rms_norm": Source,
}

RULES: Final[dict[str, Rule]] = {
    "mlc.quantized_matmul": _matmul,
    "mlc.quantized_take": _take,
    "mlc.swiglu": _swiglu,
    "mlc.qk_norm": _qk_norm,
    "relax.nn.rms_norm": _rms_norm,
}


def _device(target: Target) -> Device:
    assert target.device is not None, f"{target.name} has no device"
    return target.device
