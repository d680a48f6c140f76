"""The `mlc.*` operators as TVM knows them: what type each results in.

Importing this registers them.
"""

from collections.abc import Callable
from typing import Final

import tvm
from tvm import relax
from tvm.ir import Op, register_op_attr
from tvm.ir import _ffi_api as ir_ffi

from mlc_compile.ops.attributes import (
    COMPUTE_DTYPE,
    SOURCES,
    Attention,
    Grouping,
    Source,
    Weight,
    rounded_words,
)
from mlc_compile.ops.calls import shape_of


def _infer_weight(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    w = Weight.of(call)
    return relax.TensorType(list(w.shape), w.dtype)


def _infer_linear(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    x, w = call.args
    n, k = shape_of(w)
    _assert_inner(call, shape_of(x)[-1], k)
    return relax.TensorType([*shape_of(x)[:-1], n], COMPUTE_DTYPE)


def _infer_quantized_take(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    return relax.TensorType([*shape_of(call.args[0]), int(call.attrs["k"])], COMPUTE_DTYPE)


def _infer_swiglu(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    *outer, double = shape_of(call.args[0])
    return relax.TensorType([*outer, double // 2], COMPUTE_DTYPE)


def _infer_attention(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    qkv, gamma_q, gamma_k, kv = call.args
    a = Attention.of(call)
    *outer, width = shape_of(qkv)
    _assert_inner(call, width, (a.h_q + 2 * a.h_kv) * a.d)
    for gamma in (gamma_q, gamma_k):
        _assert_inner(call, shape_of(gamma)[0], a.d)
    return relax.TupleType([relax.TensorType([*outer, a.h_q * a.d], COMPUTE_DTYPE), kv.ty])


def _infer_qk_norm(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    a = Attention.of(call)
    b, m, width = shape_of(call.args[0])
    _assert_inner(call, width, (a.h_q + 2 * a.h_kv) * a.d)
    return relax.TensorType([b * m, a.h_q + 2 * a.h_kv, a.d], str(call.attrs["dtype"]))


def _infer_rope_angles(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    _, inv_freq, x = call.args
    return relax.TensorType([shape_of(x)[1], int(shape_of(inv_freq)[0]) * 2], COMPUTE_DTYPE)


def _infer_flat_append(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    a = Attention.of(call)
    b, m, _ = shape_of(call.args[0])
    q = relax.TensorType([b, m, a.h_q, a.d], COMPUTE_DTYPE)
    return relax.TupleType([q, call.args[4].ty, call.args[5].ty])


def _infer_flat_step(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    a = Attention.of(call)
    b, m, _ = shape_of(call.args[0])
    o = relax.TensorType([b, m, a.h_q * a.d], COMPUTE_DTYPE)
    return relax.TupleType([o, call.args[4].ty, call.args[5].ty])


def _infer_flat_attend(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    b, m, heads, d = shape_of(call.args[0])
    return relax.TensorType([b, m, int(heads) * int(d)], COMPUTE_DTYPE)


def _infer_tile_append(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    return relax.TupleType([_queries_in_pairs(call), call.args[4].ty, call.args[5].ty])


def _queries_in_pairs(call: relax.Call) -> relax.Type:
    a = Attention.of(call)
    b, m, _ = shape_of(call.args[0])
    return relax.TensorType([b, m, a.h_q, a.d // 2], "int32")


def _infer_tile_project(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    a = Attention.of(call)
    _assert_inner(call, int(call.attrs["n"]), (a.h_q + 2 * a.h_kv) * a.d)
    return relax.TupleType([_queries_in_pairs(call), call.args[5].ty, call.args[6].ty])


def _infer_tile_attend(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    a = Attention.of(call)
    b, m, *_ = shape_of(call.args[0])
    if call.attrs["rounded"]:
        return relax.TensorType([b, m, rounded_words(a.h_q * a.d)], "int32")
    return relax.TensorType([b, m, a.h_q * a.d], COMPUTE_DTYPE)


def _infer_quantize_act(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    k = int(call.attrs["k"])
    outer, groups = shape_of(call.args[0])[:-1], k // Grouping.of(call).group
    return relax.TupleType(
        [
            relax.TensorType([*outer, k // 4], "int32"),
            relax.TensorType([*outer, groups], COMPUTE_DTYPE),
            relax.TensorType([*outer, groups], "int32"),
        ]
    )


def _infer_round_act(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    outer = shape_of(call.args[0])[:-1]
    return relax.TensorType([*outer, rounded_words(int(call.attrs["k"]))], "int32")


def _infer_bf16_swiglu(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    outer = shape_of(call.args[0])[:-1]
    return relax.TensorType([*outer, rounded_words(int(call.attrs["n"]) // 2)], "int32")


def _infer_rows(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    outer = shape_of(call.args[0])[:-1]
    return relax.TensorType([*outer, int(call.attrs["n"])], COMPUTE_DTYPE)


def _infer_rows_or_swiglu(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    outer, n = shape_of(call.args[0])[:-1], int(call.attrs["n"])
    return relax.TensorType([*outer, n // 2 if call.attrs["swiglu"] else n], COMPUTE_DTYPE)


def _infer_quantized_matmul(call: relax.Call, builder: relax.BlockBuilder) -> relax.Type:
    source = Source.of(call)
    x, *extra = call.args[: SOURCES[source.kind]]
    _assert_inner(call, shape_of(x)[-1], source.k)
    for gamma in extra:
        _assert_inner(call, shape_of(gamma)[-1], source.k)
    return _infer_rows_or_swiglu(call, builder)


def _assert_inner(call: relax.Call, got: relax.Expr, expected: relax.Expr) -> None:
    sizes = (int(got), int(expected))
    assert sizes[0] == sizes[1], f"{call.op.name}: inner sizes {sizes[0]} and {sizes[1]} differ"


Infer = Callable[[relax.Call, relax.BlockBuilder], relax.Type]
OPERATORS: Final[dict[str, Infer]] = {
    "mlc.weight": _infer_weight,
    "mlc.linear": _infer_linear,
    "mlc.quantized_matmul": _infer_quantized_matmul,
    "mlc.quantized_take": _infer_quantized_take,
    "mlc.swiglu": _infer_swiglu,
    "mlc.attention": _infer_attention,
    "mlc.qk_norm": _infer_qk_norm,
    "mlc.rope_angles": _infer_rope_angles,
    "mlc.flat_append": _infer_flat_append,
    "mlc.flat_attend": _infer_flat_attend,
    "mlc.tile_append": _infer_tile_append,
    "mlc.tile_project": _infer_tile_project,
    "mlc.tile_attend": _infer_tile_attend,
    "mlc.flat_step": _infer_flat_step,
    "mlc.quantize_act": _infer_quantize_act,
    "mlc.int8_matmul": _infer_rows,
    "mlc.int8_gemv": _infer_rows_or_swiglu,
    "mlc.round_act": _infer_round_act,
    "mlc.bf16_matmul": _infer_rows,
    "mlc.bf16_swiglu": _infer_bf16_swiglu,
}


def _register(name: str, infer: Infer) -> None:
    ir_ffi.RegisterOp(name, "see mlc_compile.ops")
    register_op_attr(name, "FInferType", infer)
    # `mlc.attention` writes its cache in place, yet is pure to Relax: the cache is
    # threaded through as a value, so data dependence alone keeps the order.
    register_op_attr(name, "FPurity", tvm.runtime.convert(True))


_known = set(
    Op.list_op_names()
)  # holds ours after a second import, as under a reloading test runner
for _name, _infer in OPERATORS.items():
    if _name not in _known:
        _register(_name, _infer)
