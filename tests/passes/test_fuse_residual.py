"""add(x, int8_matmul(acts, parts))  ->  int8_matmul(acts, parts, residual=x)."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_residual import FuseResidual

N, K = 24, 64
INPUTS = {
    "x": (1, "n", N),
    "act": (1, "n", K // 4),
    "act_scale": (1, "n", K // 32),
    "offset": (1, "n", K // 32),
    "packed": (2, 1, 144),
}
DTYPES = {"act": "int32", "offset": "int32", "packed": "int32"}


@pytest.fixture
def module(graph):
    """`module(body)`: body(emit, x, rest), `rest` being what an int8_matmul reads."""

    def make(body, x=INPUTS["x"], **dtypes):
        inputs = {**INPUTS, "x": x}
        return graph(
            inputs, lambda emit, x, *rest: body(emit, x, rest), dtypes={**DTYPES, **dtypes}
        )

    return make


def matmul(emit, rest, residual=None):
    product = ops.int8_matmul(rest[:3], rest[3:], ops.Matrix(N, "q4f16_1"))
    return emit(product if residual is None else ops.with_residual(product, rest, residual))


@pytest.mark.parametrize("flip", [False, True])
def test_the_addition_becomes_part_of_the_matmul(module, same, told, flip):
    def before(emit, x, rest):
        y = matmul(emit, rest)
        return emit(relax.op.add(y, x) if flip else relax.op.add(x, y))

    got = FuseResidual()(module(before))
    same(got, module(lambda emit, x, rest: matmul(emit, rest, residual=x)))
    assert told(got, "FuseResidual") == [("mlc.int8_matmul", "done", "")]


def test_float_activations_are_no_different(module, same, told):
    product = ops.Matrix(N, "q4f16_1")

    def before(emit, x, rest):
        y = emit(ops.quantized_matmul(x, [rest[-1]], product))
        return emit(relax.op.add(x, y))

    def after(emit, x, rest):
        matmul = ops.quantized_matmul(x, [rest[-1]], product)
        return emit(ops.with_residual(matmul, matmul.args, x))

    got = FuseResidual()(module(before))
    same(got, module(after))
    assert told(got, "FuseResidual") == [("mlc.quantized_matmul", "done", "")]


def test_of_two_matmuls_one_takes_the_other_as_its_residual(module, same):
    def before(emit, _x, rest):
        return emit(relax.op.add(matmul(emit, rest), matmul(emit, rest)))

    def after(emit, _x, rest):
        return matmul(emit, rest, residual=matmul(emit, rest))

    same(FuseResidual()(module(before)), module(after))


def test_a_chain_of_layers_is_fused_throughout(module, same):
    def before(emit, x, rest):
        for _ in range(3):
            x = emit(relax.op.add(x, matmul(emit, rest)))
        return x

    def after(emit, x, rest):
        for _ in range(3):
            x = matmul(emit, rest, residual=x)
        return x

    same(FuseResidual()(module(before)), module(after))


def two_readers(emit, x, rest):
    y = matmul(emit, rest)
    return emit(relax.Tuple([emit(relax.op.add(x, y)), emit(relax.op.abs(y))]))


def also_the_result(emit, x, rest):
    y = matmul(emit, rest)
    return emit(relax.Tuple([emit(relax.op.add(x, y)), y]))


def doubled(emit, _x, rest):
    y = matmul(emit, rest)
    return emit(relax.op.add(y, y))


def has_one(emit, x, rest):
    return emit(relax.op.add(x, matmul(emit, rest, residual=x)))


def subtracted(emit, x, rest):
    return emit(relax.op.subtract(x, matmul(emit, rest)))


def through_another(emit, x, rest):
    return emit(relax.op.add(x, emit(relax.op.abs(matmul(emit, rest)))))


@pytest.mark.parametrize("body", [subtracted, through_another])
def test_anything_else_stays(module, stays, body):
    stays(FuseResidual(), module(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (two_readers, "its result has other readers"),
        (also_the_result, "its result has other readers"),
        (doubled, "its result has other readers"),
        (has_one, "it has a residual already"),
    ],
)
def test_a_sum_that_cannot_be_fused_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(FuseResidual(), module(body)) == [reason]


@pytest.mark.parametrize("shape", [(N,), (1, 1, N), (1, "n", 1), (1, 1, 1)], ids=str)
def test_a_residual_that_is_broadcast_stays(module, refused, shape):
    def body(emit, x, rest):
        return emit(relax.op.add(x, matmul(emit, rest)))

    reasons = refused(FuseResidual(), module(body, x=shape))
    assert reasons == ["the residual has another shape"]


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    def body(emit, x, rest):
        return emit(relax.op.add(x, matmul(emit, rest)))

    earlier = events.Event("Earlier", "w", "kept")
    once = FuseResidual()(events.record(module(body), [earlier]))
    assert events.read(once)[0] == earlier
    stays(FuseResidual(), once)
