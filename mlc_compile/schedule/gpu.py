"""The rules of GPU targets: which kernel family runs each `mlc.*` operator.

One table for every backend: kernels are sized by `target.Device`, whichever code generator
prints them.
"""

from collections.abc import Callable
from typing import Final

from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.quant import find_scheme
from mlc_compile.schedule.kernels.gpu import activation, embedding, gemm, gemv, norm
from mlc_compile.schedule.kernels.gpu.slots import PLAIN, Source
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from mlc_compile.schedule.rule import Kernel, Rule
from mlc_compile.target import Device, Target


def _matmul(call: relax.Call, target: Target) -> Kernel:
    x, w = call.args[0], ops.Matrix.of(call)
    device, dtype = _device(target), x.ty.dtype
    codec = codec_of(w.scheme, w.n, int(ops.shape_of(x)[-1]))
    residual, swiglu = bool(call.attrs["residual"]), bool(call.attrs["swiglu"])
    if ops.is_one_row(x):
        func = gemv.gemv(codec, w.n, device, x_dtype=dtype, residual=residual, swiglu=swiglu)
        return _plain("gemv", func, call)
    func = gemm.gemm(
        codec,
        w.n,
        device,
        x_dtype=dtype,
        compute=find_scheme(w.scheme).norm_dtype,  # as precise as what is not quantized
        residual=residual,
        swiglu=swiglu,
    )
    return _plain("gemm", func, call)


def _gemv(call: relax.Call, target: Target) -> Kernel:
    source, w = ops.Source.of(call), ops.Matrix.of(call)
    func = gemv.gemv(
        codec_of(w.scheme, w.n, source.k),
        w.n,
        _device(target),
        x_dtype=call.args[0].ty.dtype,
        source=SOURCES[source.kind](source.eps),
        residual=bool(call.attrs["residual"]),
        swiglu=bool(call.attrs["swiglu"]),
    )
    return _plain("gemv", func, call)


def _take(call: relax.Call, target: Target) -> Kernel:
    w = ops.Matrix.of(call)
    codec = codec_of(w.scheme, w.n, int(call.attrs["k"]))
    return _plain("take", embedding.take(codec, _device(target)), call)


def _rms_norm(call: relax.Call, target: Target) -> Kernel | None:
    x, gamma = call.args
    *outer, k = ops.shape_of(x)
    rank = len(outer) + 1
    last_axis = [int(a) % rank for a in call.attrs.axes] == [rank - 1]
    if not last_axis or len(outer) != 2 or x.ty.dtype != gamma.ty.dtype:
        return None
    eps = float(call.attrs.epsilon)
    return _plain("rms_norm", norm.rms_norm(int(k), eps, _rows(x), _device(target)), call)


def _qk_norm(call: relax.Call, target: Target) -> Kernel:
    a, dtype = ops.Attention.of(call), str(call.attrs["dtype"])
    func = norm.qk_norm(a, dtype, _rows(call.args[0]), _device(target))
    return _plain("qk_norm", func, call)


def _swiglu(call: relax.Call, target: Target) -> Kernel:
    i = int(ops.shape_of(call)[-1])
    return _plain("swiglu", activation.swiglu(i, _rows(call), _device(target)), call)


SOURCES: Final[dict[str, Callable[[float], Source]]] = {  # by ops.Source.kind; given eps
    "plain": lambda _eps: PLAIN,
    "rms_norm": Source,
}

RULES: Final[dict[str, Rule]] = {
    "mlc.quantized_matmul": _matmul,
    "mlc.quantized_gemv": _gemv,
    "mlc.quantized_take": _take,
    "mlc.swiglu": _swiglu,
    "mlc.qk_norm": _qk_norm,
    "relax.nn.rms_norm": _rms_norm,
}


def _plain(name: str, func: tirx.PrimFunc, call: relax.Call) -> Kernel:
    return Kernel(name, func, list(call.args), [call.ty])


def _device(target: Target) -> Device:
    assert target.device is not None, f"{target.name} has no device"
    return target.device


def _rows(x: relax.Expr) -> int | None:
    """m of a tensor [1, m, ..]: 1 when decoding, None when it is known only at run time."""
    return 1 if ops.is_one_row(x) else None
