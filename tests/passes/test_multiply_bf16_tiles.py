"""int8_matmul(quantize_act(x; source), parts) -> bf16_matmul(round_act(x; source), parts).

And flat_append and flat_attend -> tile_append and tile_attend.
"""

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


# ---- attention ---------------------------------------------------------------------------

D, PAGE = 32, 32


def attention(d):
    return ops.Attention(1, 4, 2, d, 1e-6, 1.0, (1.0,) * (d // 2))


def cached(graph, body, d=D, page=PAGE):
    """`body(emit, attributes, what an append takes)`: of m tokens, over pages of `page`."""
    inputs = {
        "qkv": (1, "m", 8 * d),
        "gamma_q": (d,),
        "gamma_k": (d,),
        "angles": ("m", d),
        "k": (2, "pages", 2, d, page),
        "v": (2, "pages", 2, page, d),
        "table": ("pages",),
        "length": (1,),
    }
    kinds = {"k": "float16", "v": "float16", "table": "int32", "length": "int32"}
    return graph(inputs, lambda emit, *args: body(emit, attention(d), args), dtypes=kinds)


def attending(append, attend):
    """One, then the other, and the pages that are left."""

    def body(emit, a, args):
        appended = emit(append(args, a))
        q, k, v = (emit(relax.TupleGetItem(appended, i)) for i in range(3))
        o = emit(attend([q, k, v, *args[-2:]], a))
        return emit(relax.Tuple([o, k, v]))

    return body


FLAT, TILES = (
    attending(ops.flat_append, ops.flat_attend),
    attending(ops.tile_append, ops.tile_attend),
)


@pytest.mark.parametrize("d", [32, 64, 128])
def test_attention_of_many_rows_is_on_tiles_and_its_queries_are_rounded(graph, same, told, d):
    got = STEP(cached(graph, FLAT, d))
    same(got, cached(graph, TILES, d))
    assert told(got, "MultiplyBF16Tiles") == [("mlc.flat_attend", "done", "")]


@pytest.mark.parametrize(("d", "page"), [(48, 32), (16, 32), (32, 16), (32, 64)])
def test_attention_over_parts_of_tiles_stays(graph, refused, d, page):
    reasons = refused(STEP, cached(graph, FLAT, d, page))
    assert reasons == ["its heads or pages are not of 32, as tiles take them"]


def queries_with_other_readers(emit, a, args):
    appended = emit(ops.flat_append(args, a))
    q, k, v = (emit(relax.TupleGetItem(appended, i)) for i in range(3))
    o = emit(ops.flat_attend([q, k, v, *args[-2:]], a))
    return emit(relax.Tuple([o, emit(relax.op.abs(q))]))


def queries_that_are_taken_twice(emit, a, args):
    appended = emit(ops.flat_append(args, a))
    q, k, v, again = (emit(relax.TupleGetItem(appended, i)) for i in (0, 1, 2, 0))
    o = emit(ops.flat_attend([q, k, v, *args[-2:]], a))
    return emit(relax.Tuple([o, emit(relax.op.abs(again))]))


def queries_of_no_append(emit, a, args):
    q = emit(relax.op.zeros(relax.ShapeExpr([*args[0].ty.shape.values[:2], 4, D]), "float32"))
    return emit(ops.flat_attend([q, *args[-4:]], a))


@pytest.mark.parametrize(
    "body", [queries_with_other_readers, queries_that_are_taken_twice, queries_of_no_append]
)
def test_queries_that_others_read_or_made_are_not_rounded(graph, refused, body):
    reasons = refused(STEP, cached(graph, body))
    assert reasons == ["its queries are not one append's, or have other readers"]


def decoding(emit, a, args):
    one = emit(relax.op.strided_slice(args[0], [1], [0], [1]))
    angles = emit(relax.op.strided_slice(args[3], [0], [0], [1]))
    return emit(ops.flat_step([one, *args[1:3], angles, *args[4:]], a))


def test_a_step_of_one_token_is_none_of_its_business(graph, stays):
    stays(STEP, cached(graph, decoding))


def test_attention_on_tiles_stays_there(graph, stays):
    stays(STEP, STEP(cached(graph, FLAT)))
