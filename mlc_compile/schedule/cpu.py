"""The rules of CPU targets: which kernel family runs each `mlc.*` operator."""

from typing import Final

from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.artifact import FlatKV
from mlc_compile.schedule.kernels import (
    activation,
    attention,
    embedding,
    int8,
    matmul,
    norm,
    quantize,
    rope,
)
from mlc_compile.schedule.kernels.dot import DotProduct, dot_for
from mlc_compile.schedule.kernels.weights import Int4, codec_of
from mlc_compile.schedule.rule import Kernel, Rule
from mlc_compile.target import Target


def _matmul(call: relax.Call, target: Target) -> Kernel:
    x, w = call.args[0], ops.Matrix.of(call)
    assert not call.attrs["swiglu"], "FuseGemv runs for GPUs only"
    codec, residual = codec_of(w.scheme, w.n, int(ops.shape_of(x)[-1])), call.attrs["residual"]
    if _rows(x) == 1:
        return _plain("gemv", matmul.gemv(codec, w.n, residual=bool(residual)), call)
    tile = matmul.Tile.of(target, codec)
    return _plain("gemm", matmul.gemm(codec, w.n, tile, residual=bool(residual)), call)


def _take(call: relax.Call, _target: Target) -> Kernel:
    w = ops.Matrix.of(call)
    return _plain("take", embedding.take(codec_of(w.scheme, w.n, int(call.attrs["k"]))), call)


def _rms_norm(call: relax.Call, _target: Target) -> Kernel | None:
    x, gamma = call.args
    *outer, k = ops.shape_of(x)
    rank = len(outer) + 1
    last_axis = [int(a) % rank for a in call.attrs.axes] == [rank - 1]
    if not last_axis or len(outer) != 2 or x.ty.dtype != gamma.ty.dtype:
        return None
    return _plain("rms_norm", norm.rms_norm(int(k), float(call.attrs.epsilon), _rows(x)), call)


def _swiglu(call: relax.Call, _target: Target) -> Kernel:
    return _plain("swiglu", activation.swiglu(int(ops.shape_of(call)[-1]), _rows(call)), call)


def _rope_angles(call: relax.Call, _target: Target) -> Kernel:
    length, inv_freq, _ = call.args
    half = int(ops.shape_of(inv_freq)[0])
    func = rope.angles(half, float(call.attrs["scale"]))
    return Kernel("rope_angles", func, [length, inv_freq], [call.ty])


def _flat_append(call: relax.Call, _target: Target) -> Kernel:
    a = ops.Attention.of(call)
    qkv, *_, k_pages, _v, _table, _length = call.args
    func = attention.append(a, _cache(k_pages), _rows(qkv))
    args = [*call.args, relax.prim_value(a.layer)]
    return Kernel("flat_append", func, args, list(call.ty.fields), inplace=(-1, 4, 5))


def _flat_attend(call: relax.Call, target: Target) -> Kernel:
    a = ops.Attention.of(call)
    q, k_pages, *_ = call.args
    func = attention.attend(a, _cache(k_pages), target, _rows(q))
    return Kernel("flat_attend", func, [*call.args, relax.prim_value(a.layer)], [call.ty])


def _flat_step(call: relax.Call, target: Target) -> Kernel:
    a = ops.Attention.of(call)
    func = attention.step(a, _cache(call.args[4]), target)
    args = [*call.args, relax.prim_value(a.layer)]
    return Kernel("flat_step", func, args, list(call.ty.fields), inplace=(-1, 4, 5))


def _quantize_act(call: relax.Call, _target: Target) -> Kernel:
    results = list(call.ty.fields)
    return Kernel("quantize_act", quantize.quantize(_feed(call)), list(call.args), results)


def _int8_matmul(call: relax.Call, target: Target) -> Kernel:
    k = int(ops.shape_of(call.args[0])[-1]) * 4  # four codes an int32
    w, residual = ops.Matrix.of(call), bool(call.attrs["residual"])
    codec = _int4(w, k)
    tile = int8.Tile.of(target, codec)
    func = int8.gemm(codec, w.n, _dot(target), tile, residual=residual)
    return _plain("int8_gemm", func, call)


def _int8_gemv(call: relax.Call, target: Target) -> Kernel:
    feed, w = _feed(call), ops.Matrix.of(call)
    residual, swiglu = bool(call.attrs["residual"]), bool(call.attrs["swiglu"])
    codec, dot = _int4(w, feed.k), _dot(target)
    func = int8.gemv(codec, w.n, feed, dot, residual=residual, swiglu=swiglu)
    return _plain("int8_gemv", func, call)


RULES: Final[dict[str, Rule]] = {
    "mlc.quantize_act": _quantize_act,
    "mlc.int8_matmul": _int8_matmul,
    "mlc.int8_gemv": _int8_gemv,
    "mlc.quantized_matmul": _matmul,
    "mlc.quantized_take": _take,
    "mlc.swiglu": _swiglu,
    "mlc.rope_angles": _rope_angles,
    "mlc.flat_append": _flat_append,
    "mlc.flat_attend": _flat_attend,
    "mlc.flat_step": _flat_step,
    "relax.nn.rms_norm": _rms_norm,
}


def _plain(name: str, func: tirx.PrimFunc, call: relax.Call) -> Kernel:
    return Kernel(name, func, list(call.args), [call.ty])


def _int4(w: ops.Matrix, k: int) -> Int4:
    codec = codec_of(w.scheme, w.n, k)
    assert isinstance(codec, Int4), "QuantizeActivations takes INT4 weights only"
    return codec


def _feed(call: relax.Call) -> quantize.Feed:
    source = ops.Source.of(call)
    return quantize.FEEDS[source.kind](source.k, source.eps)


def _dot(target: Target) -> DotProduct:
    dot = dot_for(target)
    assert dot is not None, "QuantizeActivations runs only for targets with a dot product"
    return dot


def _rows(x: relax.Expr) -> int | None:
    """m of a tensor [1, m, ..]: 1 when decoding, None when it is known only at run time."""
    return 1 if ops.is_one_row(x) else None


def _cache(k_pages: relax.Expr) -> FlatKV:
    layers, _pages, kv_heads, head_dim, page = ops.shape_of(k_pages)
    return FlatKV(
        layers=int(layers),
        kv_heads=int(kv_heads),
        head_dim=int(head_dim),
        page=int(page),
        dtype=k_pages.ty.dtype,
    )
