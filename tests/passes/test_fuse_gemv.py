"""SwiGLU after a matmul, and the norm before a single-row one, become part of it."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_gemv import FuseGemv

K, N, EPS = 64, 48, 1e-5
MATRIX = ops.Matrix(N, "q4f16_1")
INPUTS = {"x": (1, 1, K), "gamma": (K,), "codes": (N, K // 8), "scales": (N, K // 32)}
DTYPES = {"codes": "uint32", "scales": "float16"}
NORM = ops.Source("rms_norm", K, EPS)
PLAIN = ops.Source("plain", K)


@pytest.fixture
def module(graph):
    """`module(body)`: body(emit, x, gamma, parts)."""

    def make(body, **shapes):
        inputs = {**INPUTS, **shapes}
        return graph(inputs, lambda emit, x, g, *p: body(emit, x, g, p), dtypes=DTYPES)

    return make


def norm(emit, x, gamma, axes=-1):
    return emit(relax.op.nn.rms_norm(x, gamma, axes=axes, epsilon=EPS))


def matmul(emit, x, parts, *, swiglu=False):
    return emit(ops.quantized_matmul(x, parts, MATRIX, swiglu=swiglu))


def gemv(inputs, parts, source, *, swiglu):
    plain = ops.quantized_matmul(inputs[0], parts, MATRIX)
    return ops.quantized_gemv(inputs, parts, source, plain, swiglu=swiglu)


def test_a_norm_becomes_part_of_the_matmul(module, same, told):
    got = FuseGemv()(module(lambda emit, x, g, p: matmul(emit, norm(emit, x, g), p)))
    same(got, module(lambda emit, x, g, p: emit(gemv([x, g], p, NORM, swiglu=False))))
    assert told(got, "FuseGemv") == [("relax.nn.rms_norm", "done", "")]


def test_swiglu_becomes_part_of_the_matmul(module, same):
    got = FuseGemv()(module(lambda emit, x, _g, p: emit(ops.swiglu(matmul(emit, x, p)))))
    same(got, module(lambda emit, x, _g, p: emit(gemv([x], p, PLAIN, swiglu=True))))


def test_both_at_once(module, same):
    def before(emit, x, g, p):
        return emit(ops.swiglu(matmul(emit, norm(emit, x, g), p)))

    after = module(lambda emit, x, g, p: emit(gemv([x, g], p, NORM, swiglu=True)))
    same(FuseGemv()(module(before)), after)


def test_a_residual_goes_along(module, same):
    def product(x, p, base):
        made = ops.quantized_matmul(x, p, MATRIX)
        return ops.with_residual(made, made.args, base)

    def before(emit, x, g, p):
        return emit(product(norm(emit, x, g), p, emit(relax.op.zeros((1, 1, N), "float32"))))

    def after(emit, x, g, p):
        base = emit(relax.op.zeros((1, 1, N), "float32"))
        return emit(ops.quantized_gemv([x, g], [*p, base], NORM, product(x, p, base), swiglu=False))

    same(FuseGemv()(module(before)), module(after))


def test_a_matmul_with_neither_stays(module, stays):
    stays(FuseGemv(), module(lambda emit, x, _g, p: matmul(emit, x, p)))


@pytest.mark.parametrize("axes", [[1], [0, 2]])
def test_a_norm_over_other_axes_stays(module, stays, axes):
    shapes = {"gamma": (1,) if axes == [1] else (1, K)}
    stays(FuseGemv(), module(lambda e, x, g, p: matmul(e, norm(e, x, g, axes), p), **shapes))


@pytest.mark.parametrize("kind", [relax.op.nn.layer_norm, relax.op.nn.softmax])
def test_other_normalizations_stay(module, stays, kind):
    def body(emit, x, g, p):
        args = (x, g, g, [-1]) if kind is relax.op.nn.layer_norm else (x,)
        return matmul(emit, emit(kind(*args)), p)

    stays(FuseGemv(), module(body))


def two_matmuls(emit, x, g, p):
    y = norm(emit, x, g)
    return emit(relax.Tuple([matmul(emit, y, p), matmul(emit, y, p)]))


def product_is_read_twice(emit, x, _g, p):
    y = matmul(emit, x, p)
    return emit(relax.Tuple([emit(ops.swiglu(y)), y]))


def a_residual_is_added(emit, x, _g, p):
    base = emit(relax.op.zeros((*ops.shape_of(x)[:-1], N), "float32"))
    made = ops.quantized_matmul(x, p, MATRIX)
    return emit(ops.swiglu(emit(ops.with_residual(made, made.args, base))))


@pytest.mark.parametrize("m", [1, 4, "n"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (product_is_read_twice, "what it reads has other readers"),
        (a_residual_is_added, "a residual is added before it"),
    ],
)
def test_a_product_that_is_needed_otherwise_has_no_swiglu(module, refused, body, reason, m):
    assert refused(FuseGemv(), module(body, x=(1, m, K))) == [reason]


def test_a_norm_that_others_read_stays(module, refused):
    assert refused(FuseGemv(), module(two_matmuls)) == ["it has other readers"]


def of_a_norm(emit, x, g, p):
    return emit(ops.swiglu(matmul(emit, norm(emit, x, g), p)))


@pytest.mark.parametrize("m", [4, "n"])
def test_many_rows_take_swiglu_and_leave_the_norm(module, same, told, m):
    shapes = {"x": (1, m, K)}
    got = FuseGemv()(module(of_a_norm, **shapes))

    def after(emit, x, g, p):
        return matmul(emit, norm(emit, x, g), p, swiglu=True)

    same(got, module(after, **shapes))
    assert told(got, "FuseGemv") == [("mlc.swiglu", "done", "")]


def test_many_rows_that_have_a_swiglu_take_no_other(module, refused):
    def body(emit, x, _g, p):
        return emit(ops.swiglu(matmul(emit, x, p, swiglu=True)))

    reasons = refused(FuseGemv(), module(body, x=(1, "n", K)))
    assert reasons == ["another SwiGLU comes before it"]


@pytest.mark.parametrize("m", [1, "n"])
def test_a_second_run_changes_nothing_and_events_survive(module, stays, m):
    earlier = events.Event("Earlier", "w", "kept")
    once = FuseGemv()(events.record(module(of_a_norm, x=(1, m, K)), [earlier]))
    assert events.read(once)[0] == earlier
    stays(FuseGemv(), once)
