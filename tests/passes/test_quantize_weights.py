"""Weights in the form a scheme stores them: matmuls, lookups and norms."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.errors import ConfigError
from mlc_compile.passes import events
from mlc_compile.passes.quantize_weights import QuantizeWeights

X = {"x": (1, "n", 64)}
IDS = {"ids": ("n",)}
INT = {"ids": "int32"}

# scheme -> (suffix, shape of w[48, 64], dtype) of each part
PARTS = {
    "q0f32": [("weight", (48, 64), "float32")],
    "q0f16": [("weight", (48, 64), "float16")],
    "q4f16_1": [("q_weight", (48, 8), "uint32"), ("q_scale", (48, 2), "float16")],
    "q4f32_1": [("q_weight", (48, 8), "uint32"), ("q_scale", (48, 2), "float32")],
}

every_scheme = pytest.mark.parametrize("scheme", PARTS)


def parts(emit, weight, scheme, names="w.weight"):
    return [
        emit(weight(names, *shape, part=suffix, dtype=dtype))
        for suffix, shape, dtype in PARTS[scheme]
    ]


@every_scheme
@pytest.mark.parametrize("names", ["w.weight", "q.weight k.weight v.weight"])
def test_a_linear_layer_multiplies_by_the_parts(graph, weight, same, scheme, names):
    before = graph(X, lambda emit, x: emit(ops.linear(x, emit(weight(names, 48, 64)))))
    after = graph(
        X,
        lambda emit, x: emit(
            ops.quantized_matmul(x, parts(emit, weight, scheme, names), ops.Matrix(48, scheme))
        ),
    )
    got = QuantizeWeights(scheme)(before)
    same(got, after)
    assert events.read(got) == ()


@every_scheme
def test_a_lookup_takes_rows_of_the_parts(graph, weight, same, scheme):
    before = graph(
        IDS,
        lambda emit, ids: emit(relax.op.take(emit(weight("w.weight", 48, 64)), ids, axis=0)),
        dtypes=INT,
    )
    after = graph(
        IDS,
        lambda emit, ids: emit(
            ops.quantized_take(ids, parts(emit, weight, scheme), ops.Matrix(48, scheme), 64)
        ),
        dtypes=INT,
    )
    same(QuantizeWeights(scheme)(before), after)


@pytest.mark.parametrize("scheme", ["q0f16", "q4f16_1"])
def test_a_vector_is_stored_as_norms_are_and_widened(graph, weight, same, scheme):
    before = graph(X, lambda emit, x: emit(relax.op.multiply(x, emit(weight("g.weight", 64)))))

    def after(emit, x):
        stored = emit(weight("g.weight", 64, dtype="float16"))
        return emit(relax.op.multiply(x, emit(relax.op.astype(stored, "float32"))))

    same(QuantizeWeights(scheme)(before), graph(X, after))


@pytest.mark.parametrize("scheme", ["q0f32", "q4f32_1"])
def test_a_vector_already_of_that_type_stays(graph, weight, stays, scheme):
    module = graph(X, lambda emit, x: emit(relax.op.multiply(x, emit(weight("g.weight", 64)))))
    stays(QuantizeWeights(scheme), module)


@pytest.mark.parametrize(("scheme", "kept"), [("q4f16_1", "q0f16"), ("q4f32_1", "q0f32")])
def test_a_matrix_that_cannot_be_held_is_kept_and_the_report_says_why(
    graph, weight, same, scheme, kept
):
    x = {"x": (1, "n", 40)}
    dtype = PARTS[kept][0][2]
    before = graph(
        x, lambda emit, x: emit(ops.linear(x, emit(weight("a.weight b.weight", 48, 40))))
    )

    def after(emit, x):
        stored = emit(weight("a.weight b.weight", 48, 40, dtype=dtype))
        return emit(ops.quantized_matmul(x, [stored], ops.Matrix(48, kept)))

    got = QuantizeWeights(scheme)(before)
    reason = "its 40 columns are not a multiple of 32"
    assert events.read(got) == tuple(
        events.Event("QuantizeWeights", name, "kept", reason) for name in ("a.weight", "b.weight")
    )
    same(got.without_attr(events.ATTRIBUTE), graph(x, after))


def take_columns(emit, weight, x):
    return emit(relax.op.take(emit(weight("w.weight", 48, 64)), x, axis=1))


def take_of_a_tensor(emit, weight, x):
    return emit(relax.op.take(emit(relax.op.zeros((48, 64), "float32")), x, axis=0))


def linear_of_a_tensor(emit, weight, x):
    inputs = emit(relax.op.zeros((1, 3, 64), "float32"))
    return emit(ops.linear(inputs, emit(relax.op.zeros((48, 64), "float32"))))


def matrix_read_as_it_is(emit, weight, x):
    return emit(relax.op.abs(emit(weight("w.weight", 48, 64))))


@pytest.mark.parametrize(
    "near_miss", [take_columns, take_of_a_tensor, linear_of_a_tensor, matrix_read_as_it_is]
)
def test_what_no_kernel_reads_in_parts_stays(graph, weight, stays, near_miss):
    module = graph(IDS, lambda emit, ids: near_miss(emit, weight, ids), dtypes=INT)
    stays(QuantizeWeights("q4f32_1"), module)


def test_an_unknown_scheme_is_refused_as_such_before_tvm_runs_the_pass():
    with pytest.raises(ConfigError, match="no quantization scheme 'q4f16'"):
        QuantizeWeights("q4f16")


@every_scheme
def test_a_second_run_changes_nothing(graph, weight, stays, scheme):
    def before(emit, x):
        y = emit(ops.linear(x, emit(weight("w.weight", 48, 64))))
        return emit(relax.op.multiply(y, emit(weight("g.weight", 48))))

    stays(QuantizeWeights(scheme), QuantizeWeights(scheme)(graph(X, before)))
