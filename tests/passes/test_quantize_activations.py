"""quantized_matmul(x, parts)  ->  int8_matmul(quantize_act(x), parts), for INT4 weights."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.quantize_activations import QuantizeActivations
from mlc_compile.quant import SCHEMES, has_codes

N, K = 24, 64
PARTS = {"packed": (2, 1, 144)}
INPUTS = {"x": (1, "n", K), "y": (1, "n", K), **PARTS}
DTYPES = {"packed": "int32"}

INT4 = [name for name, scheme in SCHEMES.items() if has_codes(scheme)]
FLOAT = [name for name, scheme in SCHEMES.items() if not has_codes(scheme)]


@pytest.fixture
def module(graph):
    """`module(body)`: a function of two activations and the parts of one INT4 matrix."""
    return lambda body, **inputs: graph({**INPUTS, **inputs}, body, dtypes=DTYPES)


def quantized(emit, x, k=K, grouping=ops.NARROW):
    both = emit(ops.quantize_act([x], ops.Source("plain", k), grouping))
    return [emit(relax.TupleGetItem(both, i)) for i in range(3)]


def matmul(emit, x, *parts, scheme="q4f16_1"):
    return emit(ops.quantized_matmul(x, parts, ops.Matrix(N, scheme)))


def product(emit, x, *parts, scheme="q4f16_1", k=K, grouping=ops.NARROW):
    acts = quantized(emit, x, k, grouping)
    return emit(ops.int8_matmul(acts, parts, ops.Matrix(N, scheme)))


@pytest.mark.parametrize("scheme", INT4)
def test_the_activations_of_an_int4_matmul_are_quantized(module, same, told, scheme):
    def before(emit, x, _y, packed):
        return matmul(emit, x, packed, scheme=scheme)

    def after(emit, x, _y, packed):
        return product(emit, x, packed, scheme=scheme)

    got = QuantizeActivations()(module(before))
    same(got, module(after))
    assert told(got, "QuantizeActivations") == [("mlc.quantized_matmul", "done", "")]


def test_two_matmuls_of_one_tensor_share_its_quantization(module, same):
    def before(emit, x, _y, packed):
        return emit(relax.Tuple([matmul(emit, x, packed) for _ in range(2)]))

    def after(emit, x, _y, packed):
        acts = quantized(emit, x)
        w = ops.Matrix(N, "q4f16_1")
        products = [emit(ops.int8_matmul(acts, [packed], w)) for _ in range(2)]
        return emit(relax.Tuple(products))

    same(QuantizeActivations()(module(before)), module(after))


def test_two_tensors_are_quantized_each_for_itself(module, same):
    def before(emit, x, y, packed):
        return emit(relax.Tuple([matmul(emit, a, packed) for a in (x, y)]))

    def after(emit, x, y, packed):
        return emit(relax.Tuple([product(emit, a, packed) for a in (x, y)]))

    same(QuantizeActivations()(module(before)), module(after))


def test_functions_do_not_share_a_quantization(graph, module, same):
    def body(emit, x, _y, packed):
        return matmul(emit, x, packed)

    def after(emit, x, _y, packed):
        return product(emit, x, packed)

    def twice(of):
        return graph(INPUTS, of, dtypes=DTYPES, name="other", also=module(of))

    same(QuantizeActivations()(twice(body)), twice(after))


@pytest.mark.parametrize(
    ("m", "k", "taken"),
    [
        ("n", 256, True),
        (2, 128, True),
        (1, 256, False),  # one row is not worth new weights
        ("n", 192, False),  # does not divide
    ],
)
def test_rows_that_may_be_several_are_grouped_as_their_kernel_wants(module, same, m, k, taken):
    wide = ops.Grouping(group=128, zero=128)

    def before(emit, x, _y, packed):
        return matmul(emit, x, packed)

    def after(emit, x, _y, packed):
        return product(emit, x, packed, k=k, grouping=wide if taken else ops.NARROW)

    got = QuantizeActivations(several=wide)(module(before, x=(1, m, k)))
    same(got, module(after, x=(1, m, k)))


def test_a_width_that_wide_groups_do_not_divide_is_told(module, told):
    def body(emit, x, _y, packed):
        return matmul(emit, x, packed)

    wide = QuantizeActivations(several=ops.Grouping(group=128, zero=128))
    reason = "its 192 columns are not a multiple of 128: groups of 32"
    events_of = told(wide(module(body, x=(1, "n", 192))), "QuantizeActivations")
    assert ("mlc.quantize_act", "refused", reason) in events_of


@pytest.mark.parametrize("scheme", FLOAT)
def test_matmuls_of_unquantized_weights_stay_float(module, refused, scheme):
    def body(emit, x, _y, packed):
        return matmul(emit, x, packed, scheme=scheme)

    reasons = refused(QuantizeActivations(), module(body))
    assert reasons == [f"weights of scheme {scheme} are not integers"]


@pytest.mark.parametrize("k", [31, 48, 80])
def test_a_width_that_groups_do_not_divide_stays_float(module, refused, k):
    def body(emit, x, _y, packed):
        return matmul(emit, x, packed)

    reasons = refused(QuantizeActivations(), module(body, x=(1, "n", k)))
    assert reasons == [f"its {k} columns are not a multiple of 32"]


NORM = ops.Source("rms_norm", K, 1e-6)
FUSED = {
    "a source": lambda x, y, w: ops.with_source(w, [x, y], NORM, w.args[1:]),
    "a residual": lambda x, y, w: ops.with_residual(w, w.args, y),
    "SwiGLU": lambda x, y, w: ops.with_swiglu(w, w.args),
}


@pytest.mark.parametrize("fused", FUSED)
def test_a_matmul_with_more_in_it_than_a_product_stays_float(module, refused, fused):
    def body(emit, x, y, packed):
        return emit(FUSED[fused](x, y, ops.quantized_matmul(x, [packed], ops.Matrix(N, "q4f16_1"))))

    reasons = refused(QuantizeActivations(), module(body))
    assert reasons == ["a source, a residual or SwiGLU is fused into it"]


def test_a_refusal_keeps_all_activations_float_and_is_told(module, refused):
    def body(emit, x, y, packed):
        return emit(relax.Tuple([matmul(emit, a, packed) for a in (x, y)]))

    assert refused(QuantizeActivations(refusal="no instruction"), module(body)) == [
        "no instruction"
    ]


def test_a_lookup_has_no_activations(graph, stays):
    def body(emit, ids, packed):
        return emit(ops.quantized_take(ids, [packed], ops.Matrix(N, "q4f16_1"), K))

    inputs = {"ids": ("n",), **PARTS}
    stays(QuantizeActivations(), graph(inputs, body, dtypes={**DTYPES, "ids": "int32"}))


def test_a_second_run_changes_nothing_and_events_survive(module, stays):
    def body(emit, x, _y, packed):
        return matmul(emit, x, packed)

    earlier = events.Event("Earlier", "w", "kept")
    once = QuantizeActivations()(events.record(module(body), [earlier]))
    assert events.read(once)[0] == earlier
    stays(QuantizeActivations(), once)
