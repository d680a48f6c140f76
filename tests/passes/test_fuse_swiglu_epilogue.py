"""SwiGLU of a single-row int8_gemv, alone or as its reader's source, becomes its epilogue."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_swiglu_epilogue import FuseSwiGLUEpilogue

K, HALF, EPS = 64, 32, 1e-5
SOURCES = {
    "plain": ops.Source("plain", K),
    "rms_norm": ops.Source("rms_norm", K, EPS),
    "swiglu": ops.Source("swiglu", K),
}
PLAIN, GATED = ops.Source("plain", HALF), ops.Source("swiglu", HALF)
DOWN = ops.Matrix(K, "q4f16_1")
DTYPES = {"packed": "int32", "down": "int32"}


@pytest.fixture
def module(graph):
    """`module(body, m)`: body(emit, inputs of each source, packed, down, residual), m rows."""

    def make(body, m=1):
        inputs = {
            "x": (1, m, K),
            "gamma": (K,),
            "wide": (1, m, 2 * K),
            "packed": (4, 1, 144),
            "down": (4, 1, 144),
            "residual": (1, m, K),
            "base": (1, m, 2 * HALF),
        }

        def unpacked(emit, x, gamma, wide, packed, down, residual, base):
            given = {"plain": [x], "rms_norm": [x, gamma], "swiglu": [wide], "base": base}
            return body(emit, given, packed, down, residual)

        return graph(inputs, unpacked, dtypes=DTYPES)

    return make


def product(given, packed, kind="plain", n=2 * HALF, *, swiglu=False, base=()):
    """The gemv of gate and up."""
    acts = given["plain"] * 3  # for the attributes alone
    matmul = ops.int8_matmul(acts, [packed], ops.Matrix(n, "q4f16_1"))
    if base:
        matmul = ops.with_residual(matmul, matmul.args, *base)
    return ops.int8_gemv(given[kind], [packed, *base], SOURCES[kind], matmul, swiglu=swiglu)


def swiglu(_emit, y, _down, _residual, source):
    return ops.swiglu(y) if source.kind == "swiglu" else y


def quantization(_emit, y, _down, _residual, source):
    return ops.quantize_act([y], source)


def down_projection(_emit, y, down, residual, source):
    matmul = ops.int8_matmul([y] * 3, [down], DOWN)  # for its attributes alone
    matmul = ops.with_residual(matmul, matmul.args, residual)
    return ops.int8_gemv([y], [down, residual], source, matmul)


READERS = [quantization, down_projection]


def apart(reader, kind="plain", n=2 * HALF, *, base=False):
    def body(emit, given, packed, down, residual):
        bases = [given["base"]] if base else []
        y = emit(product(given, packed, kind, n, base=bases))
        return emit(reader(emit, y, down, residual, ops.Source("swiglu", n // 2)))

    return body


def joined(reader, kind="plain"):
    def body(emit, given, packed, down, residual):
        y = emit(product(given, packed, kind, swiglu=True))
        return y if reader is swiglu else emit(reader(emit, y, down, residual, PLAIN))

    return body


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("reader", READERS)
def test_swiglu_leaves_its_reader_for_the_matmul(module, same, told, reader, kind):
    got = FuseSwiGLUEpilogue()(module(apart(reader, kind)))
    same(got, module(joined(reader, kind)))
    assert told(got, "FuseSwiGLUEpilogue") == [("mlc.swiglu", "done", "")]


def test_swiglu_that_no_quantization_took_becomes_part_of_the_matmul(module, same):
    """Where FuseQuantizeSource is disabled."""
    got = FuseSwiGLUEpilogue()(module(apart(swiglu, "rms_norm")))

    def after(emit, given, packed, _down, _residual):
        return emit(product(given, packed, "rms_norm", swiglu=True))

    same(got, module(after))


def test_a_matmul_between_two_swiglus_hands_one_back_and_takes_the_other(module, same):
    """int8_gemv(y, w; swiglu) is a reader and, for the next SwiGLU, the matmul."""
    narrow = ops.Matrix(HALF, "q4f16_1")

    def middle(y, down, source, *, swiglu):
        matmul = ops.int8_matmul([y] * 3, [down], narrow)
        return ops.int8_gemv([y], [down], source, matmul, swiglu=swiglu)

    def before(emit, given, packed, down, _residual):
        y = emit(product(given, packed))
        return emit(ops.swiglu(emit(middle(y, down, GATED, swiglu=False))))

    def after(emit, given, packed, down, _residual):
        y = emit(product(given, packed, swiglu=True))
        return emit(middle(y, down, PLAIN, swiglu=True))

    got = FuseSwiGLUEpilogue()(module(before))
    same(got, module(after))


def is_read_twice(emit, given, packed, down, residual):
    y = emit(product(given, packed))
    return emit(relax.Tuple([emit(down_projection(emit, y, down, residual, GATED)), y]))


def has_a_swiglu(emit, given, packed, _down, _residual):
    y = emit(product(given, packed, n=4 * HALF, swiglu=True))
    return emit(ops.swiglu(y))


def is_quantized_apart(emit, given, packed, down, residual):
    quantized = emit(ops.quantize_act(given["plain"], SOURCES["plain"]))
    acts = [emit(relax.TupleGetItem(quantized, i)) for i in range(3)]
    y = emit(ops.int8_matmul(acts, [packed], ops.Matrix(2 * HALF, "q4f16_1")))
    return emit(down_projection(emit, y, down, residual, GATED))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (is_read_twice, "what it reads has other readers"),
        (apart(down_projection, base=True), "a residual is added before it"),
        (has_a_swiglu, "another SwiGLU comes before it"),
        (is_quantized_apart, "the matmul before it does not quantize"),
        (apart(down_projection, n=48), "its 24 columns are not a multiple of 16"),
        (apart(swiglu, n=16), "its 8 columns are not a multiple of 16"),
    ],
)
def test_what_the_matmul_cannot_take_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(FuseSwiGLUEpilogue(), module(body)) == [reason]


@pytest.mark.parametrize("m", [2, "n"])
def test_several_rows_or_an_unknown_number_stay(module, refused, m):
    reasons = refused(FuseSwiGLUEpilogue(), module(is_quantized_apart, m=m))
    assert reasons == ["it may have more than one row"]


def test_other_sources_and_other_producers_are_none_of_its_business(module, stays):
    def another_source(emit, given, packed, _down, _residual):
        y = emit(product(given, packed))
        return emit(ops.quantize_act([y], ops.Source("plain", 2 * HALF)))

    def another_producer(emit, given, _packed, _down, _residual):
        doubled = emit(relax.op.add(given["swiglu"][0], given["swiglu"][0]))
        return emit(ops.quantize_act([doubled], SOURCES["swiglu"]))

    def an_argument(emit, given, _packed, _down, _residual):
        return emit(ops.swiglu(given["swiglu"][0]))

    for body in (another_source, another_producer, an_argument):
        stays(FuseSwiGLUEpilogue(), module(body))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    earlier = events.Event("Earlier", "w", "kept")
    once = FuseSwiGLUEpilogue()(events.record(module(apart(down_projection)), [earlier]))
    assert events.read(once)[0] == earlier
    stays(FuseSwiGLUEpilogue(), once)
