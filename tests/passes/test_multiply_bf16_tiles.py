"""int8_matmul(quantize_act(x; source), parts) -> bf16_matmul(round_act(x; source), parts)."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.multiply_bf16_tiles import MultiplyBF16Tiles
from tests.passes.int8_graphs import SOURCES, K, W, acts_of, module_of, separate

STEP = MultiplyBF16Tiles()


@pytest.fixture
def module(graph):
    """`module(body, m)`: see `module_of`."""
    return lambda body, m="n": module_of(graph, body, m)


def tiles(kind, *, with_residual=False):
    def body(emit, given, parts, residual):
        pairs = emit(ops.round_act(given[kind], SOURCES[kind]))
        rest = [*parts, residual] if with_residual else parts
        return emit(ops.bf16_matmul(pairs, rest, W, K, residual=with_residual))

    return body


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("kind", ops.SOURCES)
def test_many_rows_are_rounded_with_all_that_was_fused(module, same, told, kind, with_residual):
    got = STEP(module(separate(kind, with_residual=with_residual)))
    same(got, module(tiles(kind, with_residual=with_residual)))
    assert told(got, "MultiplyBF16Tiles") == [("mlc.int8_matmul", "done", "")]


def test_two_matmuls_of_one_quantization_share_one_rounding(module, same):
    def two(multiply):
        def body(emit, given, parts, _residual):
            acts = multiply(emit, given["plain"])
            return emit(relax.Tuple([emit(acts(parts)) for _ in range(2)]))

        return body

    def quantized(emit, inputs):
        acts = acts_of(emit, inputs, SOURCES["plain"])
        return lambda parts: ops.int8_matmul(acts, parts, W)

    def rounded(emit, inputs):
        pairs = emit(ops.round_act(inputs, SOURCES["plain"]))
        return lambda parts: ops.bf16_matmul(pairs, parts, W, K)

    same(STEP(module(two(quantized))), module(two(rounded)))


def test_one_row_stays(module, refused):
    assert refused(STEP, module(separate("plain"), m=1)) == ["it has one row"]


def items_in_another_order(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"], order=(2, 1, 0))
    return emit(ops.int8_matmul(acts, parts, W))


def test_activations_of_no_quantization_stay(module, refused):
    reasons = refused(STEP, module(items_in_another_order))
    assert reasons == ["its activations are not the results of one quantization"]


def float_matmul(emit, given, parts, _residual):
    return emit(ops.quantized_matmul(given["plain"][0], parts, W))


def test_a_float_matmul_is_none_of_its_business(module, stays):
    stays(STEP, module(float_matmul))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    earlier = events.Event("Earlier", "w", "kept")
    once = STEP(events.record(module(separate("plain")), [earlier]))
    assert events.read(once)[0] == earlier
    stays(STEP, once)
