"""Calls of `mlc.*` operators, made and asked about."""

from collections.abc import Sequence
from dataclasses import asdict

from tvm import relax
from tvm.ir import Op, make_node
from tvm.tirx import IntImm

from mlc_compile.ops.attributes import (
    COMPUTE_DTYPE,
    NARROW,
    SOURCES,
    Attention,
    Grouping,
    Matrix,
    Source,
    Weight,
)


def weight(w: Weight) -> relax.Call:
    """`mlc.weight` for `w`."""
    return _call(
        "mlc.weight",
        [],
        sources=list(w.sources),
        part=w.part,
        layout=w.layout,
        shape=list(w.shape),
        dtype=w.dtype,
    )


def linear(x: relax.Expr, w: relax.Expr) -> relax.Call:
    """`mlc.linear`: x[.., k], w[n, k] -> [.., n]."""
    return _call("mlc.linear", [x, w])


def quantized_matmul(
    x: relax.Expr, parts: Sequence[relax.Expr], w: Matrix, *, swiglu: bool = False
) -> relax.Call:
    """`mlc.quantized_matmul`: x[.., k] and the parts of w[n, k] -> [.., n], or its SwiGLU.

    Its source is plain yet, and it has no residual: see `with_source`, `with_residual`.
    """
    attrs = {**Source("plain", int(shape_of(x)[-1])).attrs(), **asdict(w)}
    args = [x, *parts]
    return _call("mlc.quantized_matmul", args, **attrs, residual=False, swiglu=swiglu)


def quantized_take(ids: relax.Expr, parts: Sequence[relax.Expr], w: Matrix, k: int) -> relax.Call:
    """`mlc.quantized_take`: ids[m] and the parts of w[n, k] -> [m, k]."""
    return _call("mlc.quantized_take", [ids, *parts], **asdict(w), k=k)


def swiglu(gate_up: relax.Expr) -> relax.Call:
    """`mlc.swiglu`: [.., 2 i] -> [.., i]."""
    return _call("mlc.swiglu", [gate_up])


def attention(
    qkv: relax.Expr, gamma_q: relax.Expr, gamma_k: relax.Expr, kv: relax.Expr, a: Attention
) -> relax.Call:
    """`mlc.attention`: RMSNorm of q and k per head, RoPE, append to kv, causal attention."""
    return _call("mlc.attention", [qkv, gamma_q, gamma_k, kv], **a.attrs())


def qk_norm(
    qkv: relax.Expr, gamma_q: relax.Expr, gamma_k: relax.Expr, a: Attention, dtype: str
) -> relax.Call:
    """`mlc.qk_norm`: RMSNorm of q and k per head, all heads in `dtype`."""
    return _call("mlc.qk_norm", [qkv, gamma_q, gamma_k], **a.attrs(), dtype=dtype)


def rope_angles(
    length: relax.Expr, inv_freq: relax.Expr, x: relax.Expr, scale: float
) -> relax.Call:
    """`mlc.rope_angles`: length i32[1], inv_freq[d/2], x[1, m, ..] -> [m, d]."""
    return _call("mlc.rope_angles", [length, inv_freq, x], scale=scale)


def flat_append(args: Sequence[relax.Expr], a: Attention) -> relax.Call:
    """`mlc.flat_append`: qkv, gamma_q, gamma_k, angles, k_pages, v_pages, table, length."""
    return _call("mlc.flat_append", list(args), **a.attrs())


def flat_attend(args: Sequence[relax.Expr], a: Attention) -> relax.Call:
    """`mlc.flat_attend`: q, k_pages, v_pages, table, length."""
    return _call("mlc.flat_attend", list(args), **a.attrs())


def tile_append(args: Sequence[relax.Expr], a: Attention) -> relax.Call:
    """`mlc.tile_append`: the arguments of `mlc.flat_append`."""
    return _call("mlc.tile_append", list(args), **a.attrs())


def tile_project(matmul: relax.Call, rest: Sequence[relax.Expr], a: Attention) -> relax.Call:
    """`mlc.tile_project`: the `mlc.bf16_matmul` call `matmul` and `mlc.tile_append` in one.

    `rest` is what that reads beside the product.
    The weight is one part, as `rows16` packs INT4.
    """
    assert len(matmul.args) == 2, "pairs and one part"
    return _call("mlc.tile_project", [*matmul.args, *rest], **a.attrs(), **_product_of(matmul))


def tile_attend(args: Sequence[relax.Expr], a: Attention, *, rounded: bool = False) -> relax.Call:
    """`mlc.tile_attend`: q of `mlc.tile_append`, k_pages, v_pages, table, length."""
    return _call("mlc.tile_attend", list(args), **a.attrs(), rounded=rounded)


def flat_step(args: Sequence[relax.Expr], a: Attention) -> relax.Call:
    """`mlc.flat_step`: flat_append and flat_attend of one token."""
    return _call("mlc.flat_step", list(args), **a.attrs())


def quantize_act(
    inputs: Sequence[relax.Expr], source: Source, grouping: Grouping = NARROW
) -> relax.Call:
    """`mlc.quantize_act` of what `source` makes of `inputs`."""
    assert len(inputs) == SOURCES[source.kind]
    return _call("mlc.quantize_act", list(inputs), **source.attrs(), **asdict(grouping))


def int8_matmul(acts: Sequence[relax.Expr], parts: Sequence[relax.Expr], w: Matrix) -> relax.Call:
    """`mlc.int8_matmul`: the three results of quantize_act, the parts of w[n, k]."""
    return _call("mlc.int8_matmul", [*acts, *parts], **asdict(w), residual=False)


def round_act(inputs: Sequence[relax.Expr], source: Source) -> relax.Call:
    """`mlc.round_act` of what `source` makes of `inputs`."""
    assert len(inputs) == SOURCES[source.kind]
    return _call("mlc.round_act", list(inputs), **source.attrs())


def bf16_matmul(
    pairs: relax.Expr, rest: Sequence[relax.Expr], w: Matrix, k: int, *, residual: bool = False
) -> relax.Call:
    """`mlc.bf16_matmul`: the result of round_act, the parts of w[n, k], the residual if any."""
    return _call("mlc.bf16_matmul", [pairs, *rest], **asdict(w), k=k, residual=residual)


def bf16_swiglu(matmul: relax.Call) -> relax.Call:
    """`mlc.bf16_swiglu` of what the `mlc.bf16_matmul` call `matmul` reads; it has no residual."""
    return _call("mlc.bf16_swiglu", list(matmul.args), **_product_of(matmul))


def _product_of(matmul: relax.Call) -> dict[str, object]:
    """Attributes that say what a `mlc.bf16_matmul` multiplies."""
    return {**asdict(Matrix.of(matmul)), "k": int(matmul.attrs["k"])}


def with_residual(
    matmul: relax.Call, args: Sequence[relax.Expr], residual: relax.Expr
) -> relax.Call:
    """The matmul call `matmul`, which has none yet, on `args` and a residual."""
    return _with(matmul, [*args, residual], residual=True)


def with_source(
    matmul: relax.Call, inputs: Sequence[relax.Expr], source: Source, rest: Sequence[relax.Expr]
) -> relax.Call:
    """The `mlc.quantized_matmul` call `matmul`, plain so far, of what `source` makes of `inputs`.

    `rest` is its arguments after the activations.
    """
    assert len(inputs) == SOURCES[source.kind]
    return _with(matmul, [*inputs, *rest], **source.attrs())


def with_swiglu(matmul: relax.Call, args: Sequence[relax.Expr]) -> relax.Call:
    """The `mlc.quantized_matmul` call `matmul` on `args`, and SwiGLU of its product."""
    return _with(matmul, args, swiglu=True)


def int8_gemv(
    inputs: Sequence[relax.Expr],
    rest: Sequence[relax.Expr],
    source: Source,
    matmul: relax.Call,
    *,
    swiglu: bool = False,
) -> relax.Call:
    """`mlc.int8_gemv`: quantize_act and the call `matmul` in one, and SwiGLU of it if so.

    `matmul` is a `mlc.int8_matmul` or a `mlc.int8_gemv`, and `rest` its arguments after the
    activations.
    """
    attrs = {**source.attrs(), **asdict(Matrix.of(matmul))}
    residual = bool(matmul.attrs["residual"])
    return _call("mlc.int8_gemv", [*inputs, *rest], **attrs, residual=residual, swiglu=swiglu)


def is_call(expr: relax.Expr, op_name: str) -> bool:
    """Whether `expr` is a call of the operator `op_name`."""
    return isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name == op_name


def is_one_row(expr: relax.Expr) -> bool:
    """Whether a tensor [1, m, ..] is known to have m = 1."""
    m = shape_of(expr)[1]
    return isinstance(m, IntImm) and int(m) == 1


def is_plain(matmul: relax.Call) -> bool:
    """Whether nothing is fused into a `mlc.quantized_matmul`: no source, residual or SwiGLU."""
    attrs = matmul.attrs
    return attrs["source"] == "plain" and not attrs["residual"] and not attrs["swiglu"]


def in_compute_dtype(*tensors: relax.Expr) -> bool:
    """Whether all are of COMPUTE_DTYPE, which norms and SwiGLU have kernels for."""
    return all(str(tensor.ty.dtype) == COMPUTE_DTYPE for tensor in tensors)


def norms_rows(call: relax.Call) -> bool:
    """Whether a call of Relax's rms_norm normalizes each row of a tensor [1, m, k]."""
    shape = shape_of(call)
    if len(shape) != 3 or not isinstance(shape[0], IntImm) or int(shape[0]) != 1:
        return False
    return [int(a) % 3 for a in call.attrs.axes] == [2]


def with_args(call: relax.Call, args: Sequence[relax.Expr]) -> relax.Call:
    """The same operator and attributes on other arguments."""
    return relax.Call(call.op, list(args), call.attrs)


def shape_of(expr: relax.Expr) -> list[relax.Expr]:
    """The dimensions of a tensor whose shape is known."""
    return list(expr.ty.shape.values)


def _with(matmul: relax.Call, args: Sequence[relax.Expr], **changed: object) -> relax.Call:
    return _call(str(matmul.op.name), list(args), **{**dict(matmul.attrs.items()), **changed})


def _call(name: str, args: list[relax.Expr], **attrs: object) -> relax.Call:
    return relax.Call(Op.get(name), args, make_node("ir.DictAttrs", **attrs))
