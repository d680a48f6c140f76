"""The `mlc.*` Relax operators: what the model emits and what passes and rules match.

Operator and arguments, attributes below, result to the right:

    weight()                                the tensor `part` of the joined sources
        sources, part, layout, shape, dtype
    linear(x[.., k], w[n, k])               x w^T: [.., n]
    quantized_matmul(inputs of `source` .., part, .., residual[.., n] if any)
        source, k, eps, n, scheme,          x dequantize(parts)^T (+ residual): [.., n];
        residual, swiglu                    swiglu of the product: [.., n / 2]
    quantized_take(ids[m], part, ..)        rows of dequantize(parts): [m, k]
        n, scheme, k
    swiglu(gate_up[.., 2 i])                silu(gate) * up: [.., i]
    attention(qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d], kv)
        fields of `Attention`               (o[1, m, h_q d], kv)
    qk_norm(qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d])
        fields of `Attention`, dtype        dtype[m, h_q + 2 h_kv, d]
    rope_angles(length, inv_freq[d/2], x[1, m, ..])
        scale                               cosines and sines: [m, d]
    flat_append(qkv, gamma_q, gamma_k, angles, k_pages, v_pages, table, length)
        fields of `Attention`               (q[1, m, h_q, d], k_pages, v_pages)
    flat_step(the arguments of flat_append), for m = 1
        fields of `Attention`               (o[1, 1, h_q d], k_pages, v_pages)
    flat_attend(q, k_pages, v_pages, table, length)
        fields of `Attention`               o[1, m, h_q d]
    tile_append(the arguments of flat_append)
        fields of `Attention`               (q i32[1, m, h_q, d/2], k_pages, v_pages): q scaled
                                            for the softmax to base 2, and rounded
    tile_project(pairs, part of w[n, k], gamma_q, gamma_k, angles, k_pages, v_pages, table, length)
        fields of `Attention`, n, k, scheme as tile_append of the product, n = (h_q + 2 h_kv) d
    tile_attend(q i32[1, m, h_q, d/2], k_pages, v_pages, table, length), in bfloat16
        fields of `Attention`, rounded      o[1, m, h_q d], or i32[1, m, rounded_words(h_q d)]

    quantize_act(inputs of `source`)        (codes i32[1, m, k/4], scales f32[1, m, k/group],
        source, k, eps, fields of `Grouping` offsets i32[1, m, k/group])
    int8_matmul(codes, scales, offsets, parts of w[n, k] .., residual if any)
        n, scheme, residual                 [1, m, n]
    round_act(inputs of `source`)           i32[1, m, rounded_words(k)]: bfloat16 of k and k + 16
        source, k, eps                       of each group of 32
    bf16_matmul(pairs, parts of w[n, k] .., residual if any)
        n, k, scheme, residual              [1, m, n]
    bf16_swiglu(pairs, parts of w[n, k] ..) swiglu of the product, rounded:
        n, k, scheme                        i32[1, m, rounded_words(n / 2)]
    int8_gemv(inputs of `source` .., parts .., residual if any)
        source, k, eps, n, scheme, residual, swiglu
                                            [1, 1, n] or [1, 1, n / 2]

A `source` (see SOURCES) is what is computed on the way into quantization, rounding or product:
x is what it makes of its inputs. A residual has the shape of the result: it is added last,
after `swiglu` too. The operators with `flat` or `rope` are what `mlc.attention` becomes over
the flat KV cache (artifact.FlatKV), those with `tile` or `bf16` what takes the place of others
where a CPU multiplies tiles, and `qk_norm` what is left of it to do before TVM's paged
one; x gives `mlc.rope_angles` its m.

A weight is an operator, not a function parameter, until `BindWeights` ends the graph
phases: a pass can then join, quantize or repack weights by rewriting attributes, and the
weight plan falls out at the end. Results are float32, the type of our arithmetic, unless the
line says otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import tvm
from tvm import relax
from tvm.ir import Op, make_node, register_op_attr
from tvm.ir import _ffi_api as ir_ffi
from tvm.tirx import IntImm

from mlc_compile.layout import GROUP, ZERO_POINT

COMPUTE_DTYPE: Final = "float32"
SOURCES: Final = {"plain": 1, "rms_norm": 2, "swiglu": 1}  # name -> number of inputs
RAW: Final = "raw"  # the layout of a weight as the checkpoint has it


@dataclass(frozen=True, slots=True)
class Attention:
    """Attributes of `mlc.attention`: heads and head size, the layer, and RoPE's constants."""

    layer: int
    h_q: int
    h_kv: int
    d: int
    eps: float  # of the per-head RMSNorm of q and k
    rope_scale: float  # multiplies cos and sin; 1 but for YaRN
    inv_freq: tuple[float, ...]  # radians a position, d / 2 of them

    def attrs(self) -> dict[str, object]:
        """As operator attributes."""
        return {**asdict(self), "inv_freq": list(self.inv_freq)}

    @classmethod
    def of(cls, call: relax.Call) -> "Attention":
        """The attributes of a call of `mlc.attention` or what it became."""
        a = call.attrs
        ints = {f: int(a[f]) for f in ("layer", "h_q", "h_kv", "d")}
        inv_freq = tuple(float(f) for f in a["inv_freq"])
        return cls(
            **ints, eps=float(a["eps"]), rope_scale=float(a["rope_scale"]), inv_freq=inv_freq
        )


@dataclass(frozen=True, slots=True)
class Weight:
    """Attributes of `mlc.weight`: one part of the rows of `sources`, joined in order."""

    sources: tuple[str, ...]  # checkpoint names
    part: str  # suffix the scheme gives this array; "weight" when it is not quantized
    layout: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, call: relax.Call) -> "Weight":
        """The attributes of a `mlc.weight` call."""
        a = call.attrs
        return cls(
            sources=tuple(str(s) for s in a["sources"]),
            part=str(a["part"]),
            layout=str(a["layout"]),
            shape=tuple(int(s) for s in a["shape"]),
            dtype=str(a["dtype"]),
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


@dataclass(frozen=True, slots=True)
class Matrix:
    """Attributes that say what the parts of w[n, k] stand for: n, and a key of quant.SCHEMES."""

    n: int
    scheme: str

    @classmethod
    def of(cls, call: relax.Call) -> "Matrix":
        """The matrix of a matmul or lookup with quantized weights."""
        return cls(n=int(call.attrs["n"]), scheme=str(call.attrs["scheme"]))


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


@dataclass(frozen=True, slots=True)
class Source:
    """Attributes that say how activations are made: `kind` from SOURCES, width k, eps of a norm."""

    kind: str
    k: int
    eps: float = 0.0

    def attrs(self) -> dict[str, object]:
        """As operator attributes."""
        return {"source": self.kind, "k": self.k, "eps": self.eps}

    @classmethod
    def of(cls, call: relax.Call) -> "Source":
        """The source of a call that has one."""
        a = call.attrs
        return cls(kind=str(a["source"]), k=int(a["k"]), eps=float(a["eps"]))


@dataclass(frozen=True, slots=True)
class Grouping:
    """How activations become int8: `group` consecutive k share a scale.

    An offset is -zero times the sum of a group's codes: it takes off what a sum of products has
    too much, `zero` being the byte that stands for 0 in the weights.
    """

    group: int = GROUP
    zero: int = ZERO_POINT

    @property
    def weight_groups(self) -> int:
        """Groups of the weights that share a scale."""
        return self.group // GROUP

    @classmethod
    def of(cls, call: relax.Call) -> "Grouping":
        """The grouping of a `mlc.quantize_act`."""
        return cls(group=int(call.attrs["group"]), zero=int(call.attrs["zero"]))


NARROW: Final = Grouping()  # as INT4 weights are grouped, and their codes


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


def rounded_words(k: int) -> int:
    """int32 of a row that `mlc.round_act` gives: k / 2 pairs, padded to an odd number of lines.

    A tile reads one cache line of 16 rows at once: so they lie in different sets of a cache.
    """
    return GROUP // 2 * (k // GROUP | 1)


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


def norms_rows(call: relax.Call) -> bool:
    """Whether a call of Relax's rms_norm normalizes each row of a tensor [1, m, k]."""
    rank = len(shape_of(call))
    return rank == 3 and [int(a) % rank for a in call.attrs.axes] == [rank - 1]


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
    if name in set(Op.list_op_names()):
        return  # a second import of this module, as under a reloading test runner
    ir_ffi.RegisterOp(name, "see mlc_compile.ops")
    register_op_attr(name, "FInferType", infer)
    # `mlc.attention` writes its cache in place, yet is pure to Relax: the cache is
    # threaded through as a value, so data dependence alone keeps the order.
    register_op_attr(name, "FPurity", tvm.runtime.convert(True))


for _name, _infer in OPERATORS.items():
    _register(_name, _infer)
