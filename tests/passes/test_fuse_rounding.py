"""What is rounded for the next product is rounded where it is made.

    round_act(bf16_matmul(pairs, parts); swiglu)  ->  bf16_swiglu(pairs, parts)
    round_act(tile_attend(q, cache ..); plain)    ->  tile_attend(q, cache ..; rounded)

Only if nothing else reads it, and the kernel can.
"""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_rounding import FuseRounding
from mlc_compile.passes.multiply_bf16_tiles import MultiplyBF16Tiles
from tests.passes.int8_graphs import acts_of

STEP = FuseRounding()
K, N = 64, 192
ATTENTION = ops.Attention(1, 4, 2, 32, 1e-6, 1.0, (1.0,) * 16)
INPUTS = {
    "x": (1, "n", K),
    "gamma": (N,),
    "pairs": (1, "n", ops.rounded_words(K)),
    "packed": (12, 1, 144),
    "residual": (1, "n", N),
    "q": (1, "n", 4, 16),
    "k": (2, "pages", 2, 32, 32),
    "v": (2, "pages", 2, 32, 32),
    "table": ("pages",),
    "length": (1,),
}
DTYPES = dict.fromkeys(("pairs", "packed", "q", "table", "length"), "int32")


@pytest.fixture
def module(graph):
    """`module(body)`: `body(emit, **inputs)` of any number of rows, over any number of pages."""

    def make(body):
        def named(emit, *values):
            return body(emit, **dict(zip(INPUTS, values, strict=True)))

        return graph(INPUTS, named, dtypes=DTYPES)

    return make


def product(pairs, packed, n=N, k=K):
    return ops.bf16_matmul(pairs, [packed], ops.Matrix(n, "q4f16_1"), k)


def rounded(y, k=N // 2):
    return ops.round_act([y], ops.Source("swiglu", k))


def apart(emit, pairs, packed, **_):
    return emit(rounded(emit(product(pairs, packed))))


def fused(emit, pairs, packed, **_):
    return emit(ops.bf16_swiglu(product(pairs, packed)))


def test_a_rounded_swiglu_is_what_the_product_writes(module, same, told):
    got = STEP(module(apart))
    same(got, module(fused))
    assert told(got, "FuseRounding") == [("mlc.round_act", "done", "")]


def test_its_reader_reads_on(module, same):
    """As down does; and what that gives may be gated too."""

    def chain(gated):
        def body(emit, pairs, packed, **_):
            first = gated(emit, pairs, packed)
            second = gated(emit, first, packed, k=N // 2)
            return emit(product(second, packed, k=N // 2))

        return body

    def before(emit, pairs, packed, k=K):
        return emit(rounded(emit(product(pairs, packed, k=k))))

    def after(emit, pairs, packed, k=K):
        return emit(ops.bf16_swiglu(product(pairs, packed, k=k)))

    same(STEP(module(chain(before))), module(chain(after)))


def test_many_rows_come_to_it_by_way_of_multiply_bf16_tiles(module, same):
    def quantized(emit, x, packed, **_):
        w = ops.Matrix(N, "q4f16_1")
        y = emit(ops.int8_matmul(acts_of(emit, [x], ops.Source("plain", K)), [packed], w))
        acts = acts_of(emit, [y], ops.Source("swiglu", N // 2))
        return emit(ops.int8_matmul(acts, [packed], w))

    def expected(emit, x, packed, **_):
        pairs = emit(ops.round_act([x], ops.Source("plain", K)))
        gated = emit(ops.bf16_swiglu(product(pairs, packed)))
        return emit(product(gated, packed, k=N // 2))

    same(STEP(MultiplyBF16Tiles()(module(quantized))), module(expected))


def attended(q, k, v, table, length, *, rounded=False):
    return ops.tile_attend([q, k, v, table, length], ATTENTION, rounded=rounded)


def attended_apart(emit, pairs, packed, residual, x, gamma, **cache):
    return emit(ops.round_act([emit(attended(**cache))], ops.Source("plain", 128)))


def attended_at_once(emit, pairs, packed, residual, x, gamma, **cache):
    return emit(attended(**cache, rounded=True))


def test_attention_writes_what_the_next_product_reads(module, same, told):
    got = STEP(module(attended_apart))
    same(got, module(attended_at_once))
    assert told(got, "FuseRounding") == [("mlc.round_act", "done", "")]


def of_attention(follow):
    """`follow(emit, o)` instead of the rounding."""

    def body(emit, pairs, packed, residual, x, gamma, **cache):
        return follow(emit, emit(attended(**cache)))

    return body


def read_twice(emit, o):
    return emit(relax.Tuple([emit(ops.round_act([o], ops.Source("plain", 128))), o]))


def with_a_residual(emit, pairs, packed, residual, **_):
    matmul = product(pairs, packed)
    return emit(rounded(emit(ops.with_residual(matmul, matmul.args, residual))))


def also_read(emit, pairs, packed, **_):
    y = emit(product(pairs, packed))
    return emit(relax.Tuple([emit(rounded(y)), emit(relax.op.abs(y))]))


def also_the_result(emit, pairs, packed, **_):
    y = emit(product(pairs, packed))
    return emit(relax.Tuple([emit(rounded(y)), y]))


def rounded_twice(emit, pairs, packed, **_):
    y = emit(product(pairs, packed))
    return emit(relax.Tuple([emit(rounded(y)), emit(rounded(y))]))


def ragged(emit, pairs, packed, **_):
    return emit(rounded(emit(product(pairs, packed, n=96)), k=48))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (with_a_residual, "a residual is added before it"),
        (also_read, "what it reads has other readers"),
        (also_the_result, "what it reads has other readers"),
        (rounded_twice, "what it reads has other readers"),
        (of_attention(read_twice), "what it reads has other readers"),
        (ragged, "its 48 columns are not a multiple of 32"),
    ],
)
def test_what_the_kernel_cannot_do_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(STEP, module(body)) == [reason]


def of_another_source(source):
    def body(emit, pairs, packed, gamma, **_):
        inputs = [emit(product(pairs, packed)), gamma][: ops.SOURCES[source]]
        return emit(ops.round_act(inputs, ops.Source(source, N, 1e-6)))

    return body


NEAR_MISSES = {
    "rounded as it is": of_another_source("plain"),
    "rounded after a norm": of_another_source("rms_norm"),
    "an argument": lambda emit, residual, **_: emit(rounded(residual)),
    "another operator": lambda emit, residual, **_: emit(rounded(emit(relax.op.abs(residual)))),
    "a product of floats": lambda emit, x, packed, **_: emit(
        rounded(emit(ops.quantized_matmul(x, [packed], ops.Matrix(N, "q4f16_1"))))
    ),
    "attention that is gated": of_attention(lambda emit, o: emit(rounded(o, 64))),
    "attention that is not rounded": of_attention(lambda emit, o: emit(relax.op.abs(o))),
    "no rounding": lambda emit, pairs, packed, **_: emit(ops.swiglu(emit(product(pairs, packed)))),
}


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(module, stays, near_miss):
    stays(STEP, module(NEAR_MISSES[near_miss]))


@pytest.mark.parametrize("body", [apart, attended_apart])
def test_a_second_run_changes_nothing_and_events_survive(module, stays, body):
    earlier = events.Event("Earlier", "w", "kept")
    once = STEP(events.record(module(body), [earlier]))
    assert events.read(once)[0] == earlier
    stays(STEP, once)
