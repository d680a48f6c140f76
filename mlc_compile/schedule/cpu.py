"""The rules of CPU targets: which kernel family runs each `mlc.*` operator."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, cast

from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.artifact import FlatKV, KVDtype
from mlc_compile.layout import GROUP
from mlc_compile.schedule import families
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.kernels import (
    activation,
    attention,
    bf16_gemm,
    embedding,
    norm,
    quantize,
    rope,
)
from mlc_compile.schedule.kernels.dot import DotProduct, dot_for, grouping_for
from mlc_compile.schedule.kernels.tiles import TileUnit, unit_for
from mlc_compile.schedule.kernels.weights import Int4, codec_of
from mlc_compile.schedule.rule import Kernel, Rule, plain, rows_of
from mlc_compile.target import Target


def _matmul(call: relax.Call, target: Target) -> Kernel:
    w, source, residual = ops.Matrix.of(call), ops.Source.of(call), bool(call.attrs["residual"])
    assert not call.attrs["swiglu"], "FuseSwiGLUEpilogue takes no float32 product on a CPU"
    codec, eps = codec_of(w.scheme, w.n, source.k), EPSILONS[source.kind](source.eps)
    if rows_of(call.args[0]) == 1:
        gemv = families.gemv_family(codec, w.n, eps=eps, residual=residual)
        return plain("gemv", gemv, call)
    gemm = families.gemm_family(codec, w.n, target, eps=eps, residual=residual)
    return plain("gemm", gemm, call)


def _take(call: relax.Call, _target: Target) -> Kernel:
    w = ops.Matrix.of(call)
    return plain("take", embedding.take(codec_of(w.scheme, w.n, int(call.attrs["k"]))), call)


def _rms_norm(call: relax.Call, _target: Target) -> Kernel | None:
    x, gamma = call.args
    if not ops.norms_rows(call) or not ops.in_compute_dtype(x, gamma):
        return None
    k, eps = int(ops.shape_of(x)[-1]), float(call.attrs.epsilon)
    return plain("rms_norm", norm.rms_norm(k, eps, rows_of(x)), call)


def _swiglu(call: relax.Call, _target: Target) -> Kernel:
    return plain("swiglu", activation.swiglu(int(ops.shape_of(call)[-1]), rows_of(call)), call)


def _rope_angles(call: relax.Call, _target: Target) -> Kernel:
    length, inv_freq, _ = call.args
    half = int(ops.shape_of(inv_freq)[0])
    func = rope.angles(half, float(call.attrs["scale"]))
    return Kernel("rope_angles", func, [length, inv_freq], [call.ty])


def _flat_append(call: relax.Call, _target: Target) -> Kernel:
    a = ops.Attention.of(call)
    qkv, *_, k_pages, _v, _table, _length = call.args
    func = attention.append(a, _cache(k_pages, a), rows_of(qkv))
    return _on_cache("flat_append", func, call, inplace=(-1, 4, 5))


def _tile_append(call: relax.Call, _target: Target) -> Kernel:
    a = ops.Attention.of(call)
    func = attention.append(a, _cache(call.args[4], a), None, rounded=True)
    return _on_cache("tile_append", func, call, inplace=(-1, 4, 5))


def _tile_project(call: relax.Call, target: Target) -> Kernel:
    a, unit, k = ops.Attention.of(call), _unit(target), int(call.attrs["k"])
    codec, kv = _int4(ops.Matrix.of(call), k), _cache(call.args[5], a)
    func = families.tile_project_family(a, kv, codec, unit, target)
    return _on_cache("tile_project", func, call, inplace=(-1, 5, 6))


def _flat_attend(call: relax.Call, target: Target) -> Kernel:
    a = ops.Attention.of(call)
    q, k_pages, *_ = call.args
    func = families.attend_family(a, _cache(k_pages, a), target, rows_of(q))
    return _on_cache("flat_attend", func, call)


def _tile_attend(call: relax.Call, target: Target) -> Kernel:
    a, rounded = ops.Attention.of(call), bool(call.attrs["rounded"])
    kv = _cache(call.args[1], a)
    func = families.tile_attend_family(a, kv, _unit(target), rounded=rounded)
    return _on_cache("tile_attend", func, call)


def _flat_step(call: relax.Call, target: Target) -> Kernel:
    a = ops.Attention.of(call)
    func = families.step_family(a, _cache(call.args[4], a), target)
    return _on_cache("flat_step", func, call, inplace=(-1, 4, 5))


def _quantize_act(call: relax.Call, _target: Target) -> Kernel:
    results = list(call.ty.fields)
    func = _quantizer(ops.Source.of(call), ops.Grouping.of(call))
    return Kernel("quantize_act", func, list(call.args), results)


def _int8_matmul(call: relax.Call, target: Target) -> Kernel:
    k = int(ops.shape_of(call.args[0])[-1]) * 4  # four codes an int32
    w, residual = ops.Matrix.of(call), bool(call.attrs["residual"])
    codec = _int4(w, k)
    for feature, name, family in GEMMS:
        if feature in target.requires:
            return plain(name, family(codec, w.n, target, residual=residual), call)
    group = k // int(ops.shape_of(call.args[1])[-1])
    grouping = ops.NARROW if group == GROUP else grouping_for(target)
    assert grouping.group == group, "activations are grouped as the target's kernel wants"
    func = families.int8_gemm_family(
        codec, w.n, _dot(target), target, residual=residual, grouping=grouping
    )
    return plain("int8_gemm", func, call)


def _int8_gemv(call: relax.Call, target: Target) -> Kernel:
    source, w = ops.Source.of(call), ops.Matrix.of(call)
    residual, swiglu = bool(call.attrs["residual"]), bool(call.attrs["swiglu"])
    codec, dot = _int4(w, source.k), _dot(target)
    func = families.int8_gemv_family(
        codec, w.n, source, dot, target, residual=residual, swiglu=swiglu
    )
    return plain("int8_gemv", func, call)


def _round_act(call: relax.Call, _target: Target) -> Kernel:
    return plain("round_act", bf16_gemm.round_rows(_feed(ops.Source.of(call))), call)


def _bf16_matmul(call: relax.Call, target: Target) -> Kernel:
    w, k, residual = ops.Matrix.of(call), int(call.attrs["k"]), bool(call.attrs["residual"])
    unit = _unit(target)
    func = families.bf16_gemm_family(_int4(w, k), w.n, unit, target, residual=residual)
    return plain("bf16_gemm", func, call)


def _bf16_swiglu(call: relax.Call, target: Target) -> Kernel:
    w, unit = ops.Matrix.of(call), _unit(target)
    codec = _int4(w, int(call.attrs["k"]))
    return plain("bf16_swiglu", families.bf16_swiglu_family(codec, w.n, unit, target), call)


# What multiplies many rows faster than a dot product, best first: CPU feature, name, family.
GEMMS: Final = (("i8mm", "int8_gemm_pairs", families.int8_gemm_pairs_family),)

# By ops.Source.kind: of the norm that a float32 product begins with, if it does.
EPSILONS: Final[dict[str, Callable[[float], float | None]]] = {
    "plain": lambda _eps: None,
    "rms_norm": lambda eps: eps,
}

RULES: Final[dict[str, Rule]] = {
    "mlc.quantize_act": _quantize_act,
    "mlc.int8_matmul": _int8_matmul,
    "mlc.int8_gemv": _int8_gemv,
    "mlc.round_act": _round_act,
    "mlc.bf16_matmul": _bf16_matmul,
    "mlc.bf16_swiglu": _bf16_swiglu,
    "mlc.quantized_matmul": _matmul,
    "mlc.quantized_take": _take,
    "mlc.swiglu": _swiglu,
    "mlc.rope_angles": _rope_angles,
    "mlc.flat_append": _flat_append,
    "mlc.flat_attend": _flat_attend,
    "mlc.tile_append": _tile_append,
    "mlc.tile_project": _tile_project,
    "mlc.tile_attend": _tile_attend,
    "mlc.flat_step": _flat_step,
    "relax.nn.rms_norm": _rms_norm,
}


def _int4(w: ops.Matrix, k: int) -> Int4:
    codec = codec_of(w.scheme, w.n, k)
    assert isinstance(codec, Int4), "QuantizeActivations takes INT4 weights only"
    return codec


@cache  # each layer asks for the same few
def _quantizer(source: ops.Source, grouping: ops.Grouping) -> tirx.PrimFunc:
    return quantize.quantize(_feed(source), grouping)


def _feed(source: ops.Source) -> quantize.Feed:
    return quantize.FEEDS[source.kind](source.k, source.eps)


def _dot(target: Target) -> DotProduct:
    dot = dot_for(target)
    assert dot is not None, "QuantizeActivations runs only for targets with a dot product"
    return dot


def _unit(target: Target) -> TileUnit:
    unit = unit_for(target)
    assert unit is not None, "MultiplyBF16Tiles runs only for targets with tiles"
    return unit


def _on_cache(
    name: str,
    func: tirx.PrimFunc | Family[Any],
    call: relax.Call,
    inplace: tuple[int, ...] = (),
) -> Kernel:
    """A kernel that takes the call's arguments and its layer, and may write to pages in place."""
    args = [*call.args, relax.prim_value(ops.Attention.of(call).layer)]
    results = list(call.ty.fields) if inplace else [call.ty]
    return Kernel(name, func, args, results, inplace)


def _cache(k_pages: relax.Expr, a: ops.Attention) -> FlatKV:
    layers, _pages, kv_heads, _rows, page = ops.shape_of(k_pages)
    return FlatKV(
        layers=int(layers),
        kv_heads=int(kv_heads),
        head_dim=a.d,
        page=int(page),
        dtype=cast("KVDtype", str(k_pages.ty.dtype)),
    )
