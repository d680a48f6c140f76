"""quantized_matmul(rms_norm(x, gamma), w)  ->  quantized_matmul(x, gamma, w; rms_norm)."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.fuse_rms_norm_linear import FuseRMSNormLinear
from mlc_compile.passes.merge_projections import MergeProjections
from mlc_compile.passes.quantize_weights import QuantizeWeights
from mlc_compile.target import find_target

K, N, EPS = 64, 48, 1e-5
INT4, DENSE = ops.Matrix(N, "q4f16_1"), ops.Matrix(N, "q0f32")
INPUTS = {"x": (1, 1, K), "gamma": (K,), "packed": (3, 1, 144), "weight": (3, K, 16)}
DTYPES = {"packed": "int32"}
NORM = ops.Source("rms_norm", K, EPS)
CPU, GPU = (FuseRMSNormLinear(find_target(t)) for t in ("cpu-x86-64-v4", "cuda-multi"))

everywhere = pytest.mark.parametrize("step", [CPU, GPU], ids=["cpu", "gpu"])


@pytest.fixture
def module(graph):
    """`module(body, matrix)`: body(emit, x, gamma, matmul), matmul(x) a call under `matrix`."""

    def make(body, matrix=INT4, dtypes=None, **shapes):
        def given(emit, x, gamma, packed, weight):
            parts = [weight] if matrix.scheme == "q0f32" else [packed]
            return body(emit, x, gamma, lambda y: ops.quantized_matmul(y, parts, matrix))

        kinds = {**DTYPES, **(dtypes or {})}
        return graph({**INPUTS, **shapes}, given, dtypes=kinds)

    return make


def norm(emit, x, gamma, axes=-1):
    return emit(relax.op.nn.rms_norm(x, gamma, axes=axes, epsilon=EPS))


def apart(emit, x, gamma, matmul):
    return emit(matmul(norm(emit, x, gamma)))


def fused(x, gamma, plain):
    return ops.with_source(plain, [x, gamma], NORM, plain.args[1:])


def joined(emit, x, gamma, matmul):
    return emit(fused(x, gamma, matmul(x)))


@everywhere
@pytest.mark.parametrize("matrix", [INT4, DENSE], ids=lambda m: m.scheme)
def test_the_one_reader_of_a_norm_computes_it(module, same, told, step, matrix):
    got = step(module(apart, matrix))
    same(got, module(joined, matrix))
    assert told(got, "FuseRMSNormLinear") == [("relax.nn.rms_norm", "done", "")]


@pytest.mark.parametrize("m", [2, "n"])
@pytest.mark.parametrize("matrix", [INT4, DENSE], ids=lambda m: m.scheme)
def test_on_a_cpu_it_does_so_for_several_rows_and_few_weights(module, same, matrix, m):
    x = (1, m, K)
    same(CPU(module(apart, matrix, x=x)), module(joined, matrix, x=x))


@pytest.mark.parametrize("m", [2, "n"])
def test_on_a_gpu_the_kernel_for_several_rows_has_no_norm(module, refused, m):
    reasons = refused(GPU, module(apart, x=(1, m, K)))
    assert reasons == ["the kernel for more than one row takes x as it is"]


@pytest.mark.parametrize(("n", "fires"), [(224, True), (240, False)])
def test_of_several_rows_weights_are_multiplied_by_gamma_where_that_pays(
    module, same, refused, n, fires
):
    """Up to 227 rows of w, for 2 rows of 1024 values: see `cost.norm_in_matmul`."""
    k = 1024
    shapes = {"x": (1, "n", k), "gamma": (k,), "packed": (n // 16, k // 64, 144)}
    matrix = ops.Matrix(n, "q4f16_1")
    before = module(apart, matrix, **shapes)
    if fires:
        source = ops.Source("rms_norm", k, EPS)

        def after(emit, x, gamma, matmul):
            plain = matmul(x)
            return emit(ops.with_source(plain, [x, gamma], source, plain.args[1:]))

        same(CPU(before), module(after, matrix, **shapes))
    else:
        assert refused(CPU, before) == [
            "gamma times each of 240 x 1024 weights would take 0.125 us to save 0.118 us"
        ]


@everywhere
def test_a_residual_goes_along(module, same, step):
    def with_base(emit, matmul, x):
        base = emit(relax.op.zeros((1, 1, N), "float32"))
        plain = matmul(x)
        return ops.with_residual(plain, plain.args, base)

    def before(emit, x, gamma, matmul):
        return emit(with_base(emit, matmul, norm(emit, x, gamma)))

    def after(emit, x, gamma, matmul):
        return emit(fused(x, gamma, with_base(emit, matmul, x)))

    same(step(module(before)), module(after))


@everywhere
def test_the_norm_s_own_epsilon_goes_along(module, step):
    def body(emit, x, gamma, matmul):
        return emit(matmul(emit(relax.op.nn.rms_norm(x, gamma, axes=-1, epsilon=0.25))))

    func = step(module(body))["main"]
    (made,) = (b.value for b in func.body.blocks[0].bindings if isinstance(b.value, relax.Call))
    assert ops.Source.of(made) == ops.Source("rms_norm", K, 0.25)


def two_matmuls(emit, x, gamma, matmul):
    y = norm(emit, x, gamma)
    return emit(relax.Tuple([emit(matmul(y)), emit(matmul(y))]))


def also_the_result(emit, x, gamma, matmul):
    y = norm(emit, x, gamma)
    return emit(relax.Tuple([emit(matmul(y)), y]))


@everywhere
@pytest.mark.parametrize("body", [two_matmuls, also_the_result])
def test_a_norm_that_others_read_stays_and_an_event_says_so(module, refused, step, body):
    reasons = refused(step, module(body))
    assert reasons == ["it has other readers: each of 2 would repeat it"]


@everywhere
@pytest.mark.parametrize("merged", [True, False])
def test_projections_of_one_norm_take_it_once_they_are_merged(graph, weight, told, step, merged):
    def body(emit, x, gamma):
        y = norm(emit, x, gamma)
        return emit(relax.Tuple([emit(ops.linear(y, emit(weight(w, 16, K)))) for w in ("q", "k")]))

    mod = graph({"x": (1, 1, K), "gamma": (K,)}, body)
    mod = QuantizeWeights("q4f16_1")(MergeProjections()(mod) if merged else mod)
    noted = told(step(mod), "FuseRMSNormLinear")
    reason = "" if merged else "it has other readers: each of 2 would repeat it"
    assert noted == [("relax.nn.rms_norm", "done" if merged else "refused", reason)]


@everywhere
@pytest.mark.parametrize("axes", [[1], [0, 2]])
def test_a_norm_over_other_axes_stays(module, refused, step, axes):
    def body(emit, x, gamma, matmul):
        return emit(matmul(norm(emit, x, gamma, axes)))

    gamma = (1,) if axes == [1] else (1, K)
    reasons = refused(step, module(body, gamma=gamma))
    assert reasons == ["it does not normalize the rows of a tensor [1, m, k]"]


@everywhere
def test_types_that_kernels_do_not_take_stay(module, refused, step):
    half = {"x": "float16", "gamma": "float16"}
    assert refused(step, module(apart, dtypes=half)) == [
        "x is float16 and gamma float16: kernels take float32"
    ]


def l2_norm(emit, x, gamma):
    """x / |x| · gamma: a sum where RMSNorm has a mean, and no epsilon."""
    squares = emit(relax.op.sum(emit(relax.op.multiply(x, x)), axis=[-1], keepdims=True))
    return emit(relax.op.multiply(emit(relax.op.multiply(x, emit(relax.op.rsqrt(squares)))), gamma))


def softmax(emit, x, _gamma):
    return emit(relax.op.nn.softmax(x))


def softmax_by_hand(emit, x, _gamma):
    powers = emit(relax.op.exp(x))
    return emit(relax.op.divide(powers, emit(relax.op.sum(powers, axis=[-1], keepdims=True))))


def layer_norm(emit, x, gamma):
    return emit(relax.op.nn.layer_norm(x, gamma, gamma, [-1]))


@everywhere
@pytest.mark.parametrize("kind", [l2_norm, softmax, softmax_by_hand, layer_norm])
def test_other_normalizations_stay(module, stays, step, kind):
    stays(step, module(lambda emit, x, gamma, matmul: emit(matmul(kind(emit, x, gamma)))))


@everywhere
def test_a_matmul_without_a_norm_and_a_norm_without_a_matmul_stay(module, stays, step):
    stays(step, module(lambda emit, x, _gamma, matmul: emit(matmul(x))))
    stays(step, module(lambda emit, x, gamma, _matmul: norm(emit, x, gamma)))


def test_the_norm_of_a_quantization_is_none_of_its_business(module, stays):
    def body(emit, x, gamma, _matmul):
        return emit(ops.quantize_act([norm(emit, x, gamma)], ops.Source("plain", K)))

    stays(CPU, module(body))


@everywhere
def test_a_second_run_changes_nothing_and_events_survive(module, stays, step):
    earlier = events.Event("Earlier", "w", "kept")
    once = step(events.record(module(apart), [earlier]))
    assert events.read(once)[0] == earlier
    stays(step, once)
