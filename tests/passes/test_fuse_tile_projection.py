"""tile_append(bf16_matmul(pairs, parts), ..)  ->  tile_project(pairs, parts, ..)."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_tile_projection import FuseTileProjection

STEP = FuseTileProjection()
A = ops.Attention(1, 4, 2, 32, 1e-6, 1.0, (1.0,) * 16)
K, N = 64, 256  # four heads of queries, two of keys, two of values
INPUTS = {
    "pairs": (1, "m", ops.rounded_words(K)),
    "packed": (16, 1, 144),
    "residual": (1, "m", N),
    "gamma_q": (32,),
    "gamma_k": (32,),
    "angles": ("m", 32),
    "k": (2, "pages", 2, 32, 32),
    "v": (2, "pages", 2, 32, 32),
    "table": ("pages",),
    "length": (1,),
}
DTYPES = dict.fromkeys(("pairs", "packed", "table", "length"), "int32")


@pytest.fixture
def module(graph):
    """`module(body)`: `body(emit, product, residual, rest of what an append takes)`."""

    def make(body):
        def given(emit, pairs, packed, residual, *rest):
            product = ops.bf16_matmul(pairs, [packed], ops.Matrix(N, "q4f16_1"), K)
            return body(emit, product, residual, rest)

        return graph(INPUTS, given, dtypes=DTYPES)

    return make


def apart(emit, product, _residual, rest):
    return emit(ops.tile_append([emit(product), *rest], A))


def together(emit, product, _residual, rest):
    return emit(ops.tile_project(product, rest, A))


def test_heads_are_appended_where_they_are_made(module, same, told):
    got = STEP(module(apart))
    same(got, module(together))
    assert told(got, "FuseTileProjection") == [("mlc.tile_append", "done", "")]


def also_read(emit, product, _residual, rest):
    qkv = emit(product)
    return emit(relax.Tuple([emit(ops.tile_append([qkv, *rest], A)), emit(relax.op.abs(qkv))]))


def appended_twice(emit, product, _residual, rest):
    qkv = emit(product)
    return emit(relax.Tuple([emit(ops.tile_append([qkv, *rest], A)) for _ in range(2)]))


def with_a_residual(emit, product, residual, rest):
    qkv = emit(ops.with_residual(product, product.args, residual))
    return emit(ops.tile_append([qkv, *rest], A))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (also_read, "what it reads has other readers"),
        (appended_twice, "what it reads has other readers"),
        (with_a_residual, "a residual is added before it"),
    ],
)
def test_what_the_kernel_cannot_do_stays_and_an_event_says_why(module, refused, body, reason):
    assert refused(STEP, module(body)) == [reason]


NEAR_MISSES = {
    "an argument": lambda emit, _product, qkv, rest: emit(ops.tile_append([qkv, *rest], A)),
    "another operator": lambda emit, product, _residual, rest: emit(
        ops.tile_append([emit(relax.op.abs(emit(product))), *rest], A)
    ),
    "an append in float32": lambda emit, product, _residual, rest: emit(
        ops.flat_append([emit(product), *rest], A)
    ),
    "no append": lambda emit, product, _residual, rest: emit(product),
}


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(module, stays, near_miss):
    stays(STEP, module(NEAR_MISSES[near_miss]))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    earlier = events.Event("Earlier", "w", "kept")
    once = STEP(events.record(module(apart), [earlier]))
    assert events.read(once)[0] == earlier
    stays(STEP, once)
