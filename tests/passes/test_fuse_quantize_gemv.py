"""int8_matmul(quantize_act(x; source), parts)  ->  int8_gemv(x, parts; source), for one row."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_quantize_gemv import FuseQuantizeGemv
from mlc_compile.target import find_target
from tests.passes.int8_graphs import DTYPES, SOURCES, K, W, acts_of, module_of, separate

FUSE = FuseQuantizeGemv(find_target("cpu-x86-64-v4"))


@pytest.fixture
def module(graph):
    """`module(body, m)`: see `module_of`."""
    return lambda body, m=1, b=1: module_of(graph, body, m, b)


def joined(kind, *, with_residual=False):
    def body(emit, given, parts, residual):
        matmul = ops.int8_matmul(given["plain"] * 3, parts, W)  # for its attributes alone
        if with_residual:
            matmul = ops.with_residual(matmul, matmul.args, residual)
        return emit(ops.int8_gemv(given[kind], matmul.args[3:], SOURCES[kind], matmul))

    return body


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("kind", ops.SOURCES)
def test_one_row_is_quantized_where_it_is_multiplied(module, same, told, kind, with_residual):
    got = FUSE(module(separate(kind, with_residual=with_residual)))
    same(got, module(joined(kind, with_residual=with_residual)))
    assert told(got, "FuseQuantizeGemv") == [("mlc.int8_matmul", "done", "")]


@pytest.mark.parametrize("m", [2, 512, "n"])
def test_several_rows_or_an_unknown_number_stay(module, refused, m):
    reasons = refused(FUSE, module(separate("plain"), m=m))
    assert reasons == ["it has, or may have, several rows"]


@pytest.mark.parametrize(("blocks", "fires"), [(4, False), (5, True)])
def test_a_long_row_is_quantized_apart_from_a_narrow_matrix(graph, refused, told, blocks, fires):
    k = 40960
    inputs = {"x": (1, 1, k), "packed": (blocks, k // 64, 144)}

    def body(emit, x, packed):
        acts = acts_of(emit, [x], ops.Source("plain", k))
        return emit(ops.int8_matmul(acts, [packed], ops.Matrix(16 * blocks, "q4f16_1")))

    mod = graph(inputs, body, dtypes=DTYPES)
    if fires:
        assert told(FUSE(mod), "FuseQuantizeGemv") == [("mlc.int8_matmul", "done", "")]
    else:
        assert refused(FUSE, mod) == [
            "quantizing 40960 values in each of 16 cores would take 6.48 us to save 5.76 us"
        ]


def two_matmuls(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    return emit(relax.Tuple([emit(ops.int8_matmul(acts, parts, W)) for _ in range(2)]))


def scales_read_elsewhere(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    product = emit(ops.int8_matmul(acts, parts, W))
    return emit(relax.Tuple([product, emit(relax.op.abs(acts[1]))]))


def codes_are_a_result(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    return emit(relax.Tuple([emit(ops.int8_matmul(acts, parts, W)), acts[0]]))


def items_in_another_order(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"], order=(2, 1, 0))
    return emit(ops.int8_matmul(acts, parts, W))


def items_of_two_quantizations(emit, given, parts, _residual):
    both = acts_of(emit, given["plain"], SOURCES["plain"], order=(0, 1))
    offsets = acts_of(emit, given["plain"], SOURCES["plain"], order=(2,))
    return emit(ops.int8_matmul([*both, *offsets], parts, W))


def a_float_matmul(emit, given, parts, _residual):
    return emit(ops.quantized_matmul(given["plain"][0], parts, W))


READERS = "its activations have other readers"
MIXED = "its activations are not the results of one quantization"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (two_matmuls, READERS),
        (scales_read_elsewhere, READERS),
        (codes_are_a_result, READERS),
        (items_in_another_order, MIXED),
        (items_of_two_quantizations, MIXED),
    ],
)
def test_a_matmul_that_cannot_be_fused_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(FUSE, module(body)) == [reason]


def test_a_float_matmul_is_none_of_its_business(module, stays):
    stays(FUSE, module(a_float_matmul))


def test_activations_that_are_arguments_stay(graph, refused):
    inputs = {
        "act": (1, 1, K // 4),
        "act_scale": (1, 1, K // 32),
        "offset": (1, 1, K // 32),
        "packed": (2, 1, 144),
    }
    given = {"act": "int32", "offset": "int32", **DTYPES}

    def body(emit, *args):
        return emit(ops.int8_matmul(args[:3], args[3:], W))

    assert refused(FUSE, graph(inputs, body, dtypes=given)) == [MIXED]


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    earlier = events.Event("Earlier", "w", "kept")
    once = FUSE(events.record(module(separate("plain")), [earlier]))
    assert events.read(once)[0] == earlier
    stays(FUSE, once)
