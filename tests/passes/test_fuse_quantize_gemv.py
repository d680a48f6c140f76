"""int8_matmul(quantize_act(x; source), parts)  ->  int8_gemv(x, parts; source), for one row."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_quantize_gemv import FuseQuantizeGemv

N, K = 24, 64
SOURCES = {
    "plain": ops.Source("plain", K),
    "rms_norm": ops.Source("rms_norm", K, 1e-5),
    "swiglu": ops.Source("swiglu", K),
}
DTYPES = {"packed": "int32"}


@pytest.fixture
def module(graph):
    """`module(body, m)`: body(emit, sources' inputs, parts, residual) with m rows."""

    def make(body, m=1, b=1):
        inputs = {
            "x": (b, m, K),
            "gamma": (K,),
            "gate_up": (b, m, 2 * K),
            "packed": (2, 1, 144),
            "residual": (b, m, N),
        }

        def unpacked(emit, x, gamma, gate_up, packed, residual):
            given = {"plain": [x], "rms_norm": [x, gamma], "swiglu": [gate_up]}
            return body(emit, given, [packed], residual)

        return graph(inputs, unpacked, dtypes=DTYPES)

    return make


def acts_of(emit, inputs, source, order=(0, 1, 2)):
    quantized = emit(ops.quantize_act(inputs, source))
    return [emit(relax.TupleGetItem(quantized, i)) for i in order]


def separate(kind, *, with_residual=False):
    def body(emit, given, parts, residual):
        acts = acts_of(emit, given[kind], SOURCES[kind])
        return emit(ops.int8_matmul(acts, parts, N, residual if with_residual else None))

    return body


def joined(kind, *, with_residual=False):
    def body(emit, given, parts, residual):
        base = residual if with_residual else None
        matmul = ops.int8_matmul(given["plain"] * 3, parts, N, base)  # for its attributes alone
        rest = [*parts, *([] if base is None else [base])]
        return emit(ops.int8_gemv(given[kind], rest, SOURCES[kind], matmul))

    return body


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("kind", ops.SOURCES)
def test_one_row_is_quantized_where_it_is_multiplied(module, same, kind, with_residual):
    before = module(separate(kind, with_residual=with_residual))
    same(FuseQuantizeGemv()(before), module(joined(kind, with_residual=with_residual)))


@pytest.mark.parametrize("m", [2, 16, "n"])
def test_several_rows_or_an_unknown_number_stay(module, stays, m):
    stays(FuseQuantizeGemv(), module(separate("plain"), m=m))


def two_matmuls(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    return emit(relax.Tuple([emit(ops.int8_matmul(acts, parts, N, None)) for _ in range(2)]))


def scales_read_elsewhere(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    product = emit(ops.int8_matmul(acts, parts, N, None))
    return emit(relax.Tuple([product, emit(relax.op.abs(acts[1]))]))


def codes_are_a_result(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"])
    return emit(relax.Tuple([emit(ops.int8_matmul(acts, parts, N, None)), acts[0]]))


def items_in_another_order(emit, given, parts, _residual):
    acts = acts_of(emit, given["plain"], SOURCES["plain"], order=(2, 1, 0))
    return emit(ops.int8_matmul(acts, parts, N, None))


def items_of_two_quantizations(emit, given, parts, _residual):
    both = acts_of(emit, given["plain"], SOURCES["plain"], order=(0, 1))
    offsets = acts_of(emit, given["plain"], SOURCES["plain"], order=(2,))
    return emit(ops.int8_matmul([*both, *offsets], parts, N, None))


def a_float_matmul(emit, given, parts, _residual):
    return emit(ops.quantized_matmul(given["plain"][0], parts, N, "q4f16_1"))


@pytest.mark.parametrize(
    "body",
    [
        two_matmuls,
        scales_read_elsewhere,
        codes_are_a_result,
        items_in_another_order,
        items_of_two_quantizations,
        a_float_matmul,
    ],
)
def test_anything_else_stays(module, stays, body):
    stays(FuseQuantizeGemv(), module(body))


def test_activations_that_are_arguments_stay(graph, stays):
    inputs = {
        "act": (1, 1, K // 4),
        "act_scale": (1, 1, K // 32),
        "offset": (1, 1, K // 32),
        "packed": (2, 1, 144),
    }
    given = {"act": "int32", "offset": "int32", **DTYPES}

    def body(emit, *args):
        return emit(ops.int8_matmul(args[:3], args[3:], N, None))

    stays(FuseQuantizeGemv(), graph(inputs, body, dtypes=given))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    told = events.Event("Earlier", "w", "kept")
    once = FuseQuantizeGemv()(events.record(module(separate("plain")), [told]))
    assert events.read(once) == (told,)
    stays(FuseQuantizeGemv(), once)
