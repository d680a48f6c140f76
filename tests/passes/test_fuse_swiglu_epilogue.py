"""SwiGLU becomes the epilogue of what it reads: of a single-row int8_gemv, or on a GPU.

There of any matmul; on a CPU alone or as its reader's source.
"""

import msgspec
import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_swiglu_epilogue import FuseSwiGLUEpilogue
from mlc_compile.target import find_target

K, HALF, EPS = 64, 32, 1e-5
SOURCES = {
    "plain": ops.Source("plain", K),
    "rms_norm": ops.Source("rms_norm", K, EPS),
    "swiglu": ops.Source("swiglu", K),
}
PLAIN, GATED = ops.Source("plain", HALF), ops.Source("swiglu", HALF)
DOWN = ops.Matrix(K, "q4f16_1")
DTYPES = {"packed": "int32", "down": "int32"}
FUSE, ON_GPU = (FuseSwiGLUEpilogue(find_target(t)) for t in ("cpu-x86-64-v3", "cuda-multi"))


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
    return ops.quantize_act([y], source, ops.Grouping(group=32, zero=128))  # which must survive


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
    got = FUSE(module(apart(reader, kind)))
    same(got, module(joined(reader, kind)))
    assert told(got, "FuseSwiGLUEpilogue") == [("mlc.swiglu", "done", "")]


def test_swiglu_that_no_quantization_took_becomes_part_of_the_matmul(module, same):
    """Where FuseQuantizeSource is disabled."""
    got = FUSE(module(apart(swiglu, "rms_norm")))

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

    got = FUSE(module(before))
    same(got, module(after))


def is_read_twice(emit, given, packed, down, residual):
    y = emit(product(given, packed))
    return emit(relax.Tuple([emit(down_projection(emit, y, down, residual, GATED)), y]))


def has_a_swiglu(emit, given, packed, _down, _residual):
    y = emit(product(given, packed, n=4 * HALF, swiglu=True))
    return emit(ops.swiglu(y))


def is_float(emit, given, packed, _down, _residual):
    made = ops.quantized_matmul(given["plain"][0], [packed], ops.Matrix(2 * HALF, "q4f16_1"))
    return emit(ops.swiglu(emit(made)))


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
        (is_float, "the matmul before it does not quantize"),
        (apart(down_projection, n=48), "its 24 columns are not a multiple of 16"),
        (apart(swiglu, n=16), "its 8 columns are not a multiple of 16"),
    ],
)
def test_what_the_matmul_cannot_take_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(FUSE, module(body)) == [reason]


@pytest.mark.parametrize("m", [2, "n"])
def test_several_rows_or_an_unknown_number_stay(module, refused, m):
    reasons = refused(FUSE, module(is_quantized_apart, m=m))
    assert reasons == ["it has, or may have, several rows"]


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
        stays(FUSE, module(body))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    earlier = events.Event("Earlier", "w", "kept")
    once = FUSE(events.record(module(apart(down_projection)), [earlier]))
    assert events.read(once)[0] == earlier
    stays(FUSE, once)


def test_two_sums_that_would_spill_stay_apart(module, refused):
    """No CPU has both few and narrow registers and an int8 dot product."""
    narrow = msgspec.structs.replace(FUSE.target, vector_bits=128)
    reasons = refused(FuseSwiGLUEpilogue(narrow), module(apart(down_projection)))
    assert reasons == ["its sums would spill: they fill 24 vector registers of 16"]


@pytest.mark.parametrize(("k", "fires"), [(1024, True), (2048, False)])
def test_half_as_many_tasks_must_not_cost_more_than_silu(graph, refused, told, k, fires):
    """8 pairs of blocks: 8 of 16 cores would wait while the others sum twice as much."""
    inputs = {"x": (1, 1, k), "packed": (16, k // 64, 144)}

    def body(emit, x, packed):
        matmul = ops.int8_matmul([x] * 3, [packed], ops.Matrix(256, "q4f16_1"))
        y = emit(ops.int8_gemv([x], [packed], ops.Source("plain", k), matmul))
        return emit(ops.quantize_act([y], ops.Source("swiglu", 128)))

    step, mod = FuseSwiGLUEpilogue(find_target("cpu-x86-64-v4")), graph(inputs, body, dtypes=DTYPES)
    if fires:
        assert told(step(mod), "FuseSwiGLUEpilogue") == [("mlc.swiglu", "done", "")]
    else:
        assert refused(step, mod) == [
            "gate and up in one of 8 tasks for 16 cores would take 0.115 us to save 0.114 us"
        ]


def float_product(given, packed, *, swiglu=False, base=None):
    matrix = ops.Matrix(2 * HALF, "q4f16_1")
    made = ops.quantized_matmul(given["plain"][0], [packed], matrix, swiglu=swiglu)
    return made if base is None else ops.with_residual(made, made.args, base)


@pytest.mark.parametrize("m", [1, 4, "n"])
def test_on_a_gpu_any_float_matmul_takes_it(module, same, told, m):
    def before(emit, given, packed, _down, _residual):
        return emit(ops.swiglu(emit(float_product(given, packed))))

    def after(emit, given, packed, _down, _residual):
        return emit(float_product(given, packed, swiglu=True))

    got = ON_GPU(module(before, m))
    same(got, module(after, m))
    assert told(got, "FuseSwiGLUEpilogue") == [("mlc.swiglu", "done", "")]
    again = ON_GPU(got)
    same(again, got)
    assert told(again, "FuseSwiGLUEpilogue") == told(got, "FuseSwiGLUEpilogue")


def test_on_a_gpu_a_matmul_that_begins_with_a_norm_takes_it_too(module, same):
    def with_norm(given, packed, *, swiglu):
        plain = float_product(given, packed, swiglu=swiglu)
        return ops.with_source(plain, given["rms_norm"], SOURCES["rms_norm"], plain.args[1:])

    def before(emit, given, packed, _down, _residual):
        return emit(ops.swiglu(emit(with_norm(given, packed, swiglu=False))))

    def after(emit, given, packed, _down, _residual):
        return emit(with_norm(given, packed, swiglu=True))

    same(ON_GPU(module(before)), module(after))


def float_is_read_twice(emit, given, packed, _down, _residual):
    y = emit(float_product(given, packed))
    return emit(relax.Tuple([emit(ops.swiglu(y)), y]))


def float_has_a_residual(emit, given, packed, _down, _residual):
    return emit(ops.swiglu(emit(float_product(given, packed, base=given["base"]))))


def float_has_a_swiglu(emit, given, packed, _down, _residual):
    return emit(ops.swiglu(emit(float_product(given, packed, swiglu=True))))


@pytest.mark.parametrize("m", [1, 4, "n"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (float_is_read_twice, "what it reads has other readers"),
        (float_has_a_residual, "a residual is added before it"),
        (float_has_a_swiglu, "another SwiGLU comes before it"),
    ],
)
def test_on_a_gpu_a_product_that_is_needed_otherwise_has_no_swiglu(
    module, refused, body, reason, m
):
    assert refused(ON_GPU, module(body, m)) == [reason]
