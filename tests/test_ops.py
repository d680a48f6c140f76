"""The `mlc.*` operators: what each infers, that all are pure, and attributes that come back."""

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op

from mlc_compile import ops
from mlc_compile.layout import GROUP

N = tirx.Var("n", "int64")
PAGES = tirx.Var("pages", "int64")
ATTENTION = ops.Attention(3, 4, 2, 8, 1e-6, 1.25, (1.0, 0.5, 0.25, 0.125))
MATRIX = ops.Matrix(24, "q4f16_1")


def var(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def inferred(call):
    return relax.BlockBuilder().normalize(call).ty


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


X = var("x", 1, N, 64)
ONE = var("x", 1, 1, 64)
PARTS = [var("packed", 2, 1, 144, dtype="int32")]
QKV, TOKEN = var("qkv", 1, N, 64), var("qkv", 1, 1, 64)
GAMMAS = [var("gamma_q", 8), var("gamma_k", 8)]
KV = relax.Var("kv", relax.ObjectType())
K, V = var("k", 2, PAGES, 2, 8, 32, dtype="float16"), var("v", 2, PAGES, 2, 32, 8, dtype="float16")
CACHE = [K, V, var("table", PAGES, dtype="int32"), var("length", 1, dtype="int32")]
ACTS = [
    var("codes", 1, N, 16, dtype="int32"),
    var("scales", 1, N, 2),
    var("offsets", 1, N, 2, dtype="int32"),
]
ROUNDED = var("pairs", 1, N, 48, dtype="int32")
GAMMA = var("gamma", 64)
PLAIN, RMS_NORM = ops.Source("plain", 64), ops.Source("rms_norm", 64, 1e-5)
MATMUL = ops.int8_matmul(ACTS, PARTS, MATRIX)
QUANTIZED = relax.TupleType(
    [
        tensor(1, N, 64 // 4, dtype="int32"),
        tensor(1, N, 64 // GROUP),
        tensor(1, N, 2, dtype="int32"),
    ]
)

CALLS = {
    "weight": (
        ops.weight(ops.Weight(("a", "b"), "q_scale", ops.RAW, (6, 2), "float16")),
        tensor(6, 2, dtype="float16"),
    ),
    "linear": (ops.linear(X, var("w", 24, 64)), tensor(1, N, 24)),
    "quantized_matmul": (ops.quantized_matmul(X, PARTS, MATRIX), tensor(1, N, 24)),
    "quantized_take": (
        ops.quantized_take(var("ids", N, dtype="int32"), PARTS, MATRIX, 64),
        tensor(N, 64),
    ),
    "swiglu": (ops.swiglu(X), tensor(1, N, 32)),
    "attention": (
        ops.attention(QKV, *GAMMAS, KV, ATTENTION),
        relax.TupleType([tensor(1, N, 32), relax.ObjectType()]),
    ),
    "qk_norm": (
        ops.qk_norm(QKV, *GAMMAS, ATTENTION, "float16"),
        tensor(N, 8, 8, dtype="float16"),
    ),
    "rope_angles": (ops.rope_angles(CACHE[3], var("inv_freq", 4), QKV, 1.25), tensor(N, 8)),
    "flat_append": (
        ops.flat_append([QKV, *GAMMAS, var("angles", N, 8), *CACHE], ATTENTION),
        relax.TupleType([tensor(1, N, 4, 8), K.ty, V.ty]),
    ),
    "flat_attend": (
        ops.flat_attend([var("q", 1, N, 4, 8), *CACHE], ATTENTION),
        tensor(1, N, 32),
    ),
    "tile_append": (
        ops.tile_append([QKV, *GAMMAS, var("angles", N, 8), *CACHE], ATTENTION),
        relax.TupleType([tensor(1, N, 4, 4, dtype="int32"), K.ty, V.ty]),
    ),
    "tile_project": (
        ops.tile_project(
            ops.bf16_matmul(ROUNDED, PARTS, ops.Matrix(64, "q4f16_1"), 64),
            [*GAMMAS, var("angles", N, 8), *CACHE],
            ATTENTION,
        ),
        relax.TupleType([tensor(1, N, 4, 4, dtype="int32"), K.ty, V.ty]),
    ),
    "tile_attend": (
        ops.tile_attend([var("q", 1, N, 4, 4, dtype="int32"), *CACHE], ATTENTION),
        tensor(1, N, 32),
    ),
    "flat_step": (
        ops.flat_step([TOKEN, *GAMMAS, var("angles", 1, 8), *CACHE], ATTENTION),
        relax.TupleType([tensor(1, 1, 32), K.ty, V.ty]),
    ),
    "quantize_act": (ops.quantize_act([X, var("gamma", 64)], RMS_NORM), QUANTIZED),
    "int8_matmul": (MATMUL, tensor(1, N, 24)),
    "int8_gemv": (ops.int8_gemv([ONE, GAMMAS[0]], PARTS, RMS_NORM, MATMUL), tensor(1, 1, 24)),
    "round_act": (ops.round_act([X, GAMMA], RMS_NORM), tensor(1, N, 48, dtype="int32")),
    "bf16_matmul": (ops.bf16_matmul(ROUNDED, PARTS, MATRIX, 64), tensor(1, N, 24)),
    "bf16_swiglu": (
        ops.bf16_swiglu(ops.bf16_matmul(ROUNDED, PARTS, ops.Matrix(192, "q4f16_1"), 64)),
        tensor(1, N, ops.rounded_words(96), dtype="int32"),
    ),
}


def test_every_operator_is_tested_here():
    assert {f"mlc.{name}" for name in CALLS} == set(ops.OPERATORS)


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_infers_the_type_of_its_result(name):
    call, expected = CALLS[name]
    assert ops.is_call(call, f"mlc.{name}")
    tvm.ir.assert_structural_equal(inferred(call), expected)


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_is_pure_so_it_may_stand_in_a_dataflow_block(name):
    assert Op.get(f"mlc.{name}").get_attr("FPurity")


def test_quantize_act_of_swiglu_is_as_wide_as_a_half():
    call = ops.quantize_act([var("gate_up", 1, N, 128)], ops.Source("swiglu", 64))
    tvm.ir.assert_structural_equal(inferred(call), QUANTIZED)


def test_attention_that_is_rounded_gives_the_rows_of_a_product():
    q = var("q", 1, N, 4, 4, dtype="int32")
    call = ops.tile_attend([q, *CACHE], ATTENTION, rounded=True)
    expected = tensor(1, N, ops.rounded_words(32), dtype="int32")
    tvm.ir.assert_structural_equal(inferred(call), expected)


@pytest.mark.parametrize(
    ("call", "rows"),
    [
        pytest.param(ops.quantized_matmul(X, PARTS, MATRIX, swiglu=True), N, id="many"),
        pytest.param(ops.int8_gemv([ONE], PARTS, PLAIN, MATMUL, swiglu=True), 1, id="one"),
    ],
)
def test_a_matmul_that_ends_in_swiglu_is_half_as_wide(call, rows):
    tvm.ir.assert_structural_equal(inferred(call), tensor(1, rows, 12))
    assert ops.Matrix.of(call) == MATRIX


def test_a_matmul_takes_a_source_and_swiglu_whatever_it_has_already():
    residual = var("residual", 1, N, 24)
    product = ops.quantized_matmul(X, PARTS, MATRIX)
    product = ops.with_residual(product, product.args, residual)
    normed = ops.with_source(product, [X, GAMMA], RMS_NORM, product.args[1:])
    assert list(normed.args) == [X, GAMMA, *PARTS, residual]
    assert (ops.Source.of(normed), normed.attrs["residual"]) == (RMS_NORM, True)
    tvm.ir.assert_structural_equal(inferred(normed), tensor(1, N, 24))
    gated = ops.with_swiglu(normed, normed.args)
    assert ops.Source.of(gated) == RMS_NORM
    tvm.ir.assert_structural_equal(inferred(gated), tensor(1, N, 12))


def test_a_residual_comes_after_swiglu():
    product = ops.quantized_matmul(X, PARTS, MATRIX, swiglu=True)
    both = ops.with_residual(product, product.args, var("residual", 1, N, 12))
    tvm.ir.assert_structural_equal(inferred(both), tensor(1, N, 12))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(ops.linear(X, var("w", 24, 32)), id="linear"),
        pytest.param(ops.attention(X, *[var("g", 4)] * 2, KV, ATTENTION), id="gamma"),
        pytest.param(ops.attention(var("qkv", 1, N, 48), *GAMMAS, KV, ATTENTION), id="qkv"),
        pytest.param(
            ops.tile_project(
                ops.bf16_matmul(ROUNDED, PARTS, ops.Matrix(48, "q4f16_1"), 64),
                [*GAMMAS, var("angles", N, 8), *CACHE],
                ATTENTION,
            ),
            id="rows of queries, keys and values",
        ),
        pytest.param(
            ops.with_source(
                ops.quantized_matmul(X, PARTS, MATRIX), [X, GAMMAS[0]], RMS_NORM, PARTS
            ),
            id="gamma of a source",
        ),
    ],
)
def test_sizes_that_do_not_agree_are_our_bug(call):
    with pytest.raises(AssertionError, match=r"inner sizes \d+ and \d+ differ"):
        inferred(call)


def test_a_source_takes_its_own_number_of_inputs():
    for prepare in (ops.quantize_act, ops.round_act):
        with pytest.raises(AssertionError):
            prepare([X], RMS_NORM)
    with pytest.raises(AssertionError):
        ops.with_source(ops.quantized_matmul(X, PARTS, MATRIX), [X], RMS_NORM, PARTS)


def test_attributes_are_read_as_they_were_written():
    weight = ops.Weight(("a", "b"), "q_scale", ops.RAW, (6, 2), "float16")
    assert ops.Weight.of(ops.weight(weight)) == weight
    caches = "flat_append flat_attend flat_step tile_append tile_project tile_attend"
    for name in caches.split():
        assert ops.Attention.of(CALLS[name][0]) == ATTENTION
    assert ops.Source.of(CALLS["int8_gemv"][0]) == RMS_NORM
    matrices = "quantized_matmul quantized_take int8_matmul int8_gemv bf16_matmul"
    for name in matrices.split():
        assert ops.Matrix.of(CALLS[name][0]) == MATRIX
    assert ops.Matrix.of(CALLS["bf16_swiglu"][0]) == ops.Matrix(192, "q4f16_1")
    assert ops.Matrix.of(CALLS["tile_project"][0]) == ops.Matrix(64, "q4f16_1")
    for name in ("bf16_matmul", "bf16_swiglu", "tile_project"):
        assert CALLS[name][0].attrs["k"] == 64


def test_a_residual_is_the_last_argument_and_survives_into_gemv():
    residual = var("residual", 1, N, 24)
    assert not MATMUL.attrs["residual"]
    matmul = ops.with_residual(MATMUL, MATMUL.args, residual)
    assert matmul.attrs["residual"]
    assert matmul.args[-1].same_as(residual)
    gemv = ops.int8_gemv([ONE], matmul.args[3:], PLAIN, matmul)
    assert gemv.attrs["residual"]
    assert gemv.args[-1].same_as(residual)


@pytest.mark.parametrize(
    ("k", "lines"), [(32, 1), (64, 3), (96, 3), (1024, 33), (2048, 65), (3072, 97), (25600, 801)]
)
def test_a_rounded_row_is_an_odd_number_of_cache_lines(k, lines):
    assert ops.rounded_words(k) == 16 * lines


def test_a_product_of_tiles_may_have_a_residual():
    residual = var("residual", 1, N, 24)
    matmul = ops.bf16_matmul(ROUNDED, [*PARTS, residual], MATRIX, 64, residual=True)
    assert matmul.attrs["residual"]
    assert matmul.args[-1].same_as(residual)
    tvm.ir.assert_structural_equal(inferred(matmul), tensor(1, N, 24))


@pytest.mark.parametrize(("m", "one"), [(1, True), (2, False), (N, False)])
def test_one_row_is_one_that_is_known_to_be(m, one):
    assert ops.is_one_row(var("x", 1, m, 8)) is one
