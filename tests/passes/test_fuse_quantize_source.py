"""quantize_act(rms_norm(x, gamma))  ->  quantize_act(x, gamma; rms_norm), and swiglu alike."""

import pytest
from tvm import relax

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.events import Event
from mlc_compile.passes.fuse_quantize_source import FuseQuantizeSource

K, EPS = 64, 1e-5
INPUTS = {"x": (1, "n", K), "gate_up": (1, "n", 2 * K), "gamma": (K,)}
PLAIN = ops.Source("plain", K)
NORM = ops.Source("rms_norm", K, EPS)


def norm(emit, x, gamma, axes=-1):
    return emit(relax.op.nn.rms_norm(x, gamma, axes=axes, epsilon=EPS))


def quantized(emit, *inputs, source=PLAIN):
    return emit(ops.quantize_act(inputs, source))


@pytest.mark.parametrize("axes", [-1, 2, [-1]])
def test_a_norm_is_computed_while_quantizing(graph, same, axes):
    def before(emit, x, _gate_up, gamma):
        return quantized(emit, norm(emit, x, gamma, axes))

    def after(emit, x, _gate_up, gamma):
        return quantized(emit, x, gamma, source=NORM)

    got = FuseQuantizeSource()(graph(INPUTS, before))
    assert events.read(got) == (Event("FuseQuantizeSource", "relax.nn.rms_norm", "done"),)
    same(got.without_attr(events.ATTRIBUTE), graph(INPUTS, after))


def test_a_gated_activation_is_computed_while_quantizing(graph, same):
    def before(emit, _x, gate_up, _gamma):
        return quantized(emit, emit(ops.swiglu(gate_up)))

    def after(emit, _x, gate_up, _gamma):
        return quantized(emit, gate_up, source=ops.Source("swiglu", K))

    got = FuseQuantizeSource()(graph(INPUTS, before))
    assert events.read(got) == (Event("FuseQuantizeSource", "mlc.swiglu", "done"),)
    same(got.without_attr(events.ATTRIBUTE), graph(INPUTS, after))


def test_the_groups_stay_as_they_are(graph, same):
    wide = ops.Grouping(group=K // 2, zero=128)

    def before(emit, _x, gate_up, _gamma):
        return emit(ops.quantize_act([emit(ops.swiglu(gate_up))], PLAIN, wide))

    def after(emit, _x, gate_up, _gamma):
        return emit(ops.quantize_act([gate_up], ops.Source("swiglu", K), wide))

    got = FuseQuantizeSource()(graph(INPUTS, before)).without_attr(events.ATTRIBUTE)
    same(got, graph(INPUTS, after))


def test_the_producer_of_a_producer_stays(graph, same):
    """A norm of a SwiGLU: only the norm feeds the quantization."""

    def before(emit, _x, gate_up, gamma):
        return quantized(emit, norm(emit, emit(ops.swiglu(gate_up)), gamma))

    def after(emit, _x, gate_up, gamma):
        return quantized(emit, emit(ops.swiglu(gate_up)), gamma, source=NORM)

    got = FuseQuantizeSource()(graph(INPUTS, before)).without_attr(events.ATTRIBUTE)
    same(got, graph(INPUTS, after))


def read_twice(emit, x, _gate_up, gamma):
    y = norm(emit, x, gamma)
    return emit(relax.Tuple([quantized(emit, y), emit(relax.op.abs(y))]))


def also_the_result(emit, x, _gate_up, gamma):
    y = norm(emit, x, gamma)
    return emit(relax.Tuple([quantized(emit, y), y]))


def quantized_twice(emit, x, _gate_up, gamma):
    y = norm(emit, x, gamma)
    return emit(relax.Tuple([quantized(emit, y), quantized(emit, y)]))


@pytest.mark.parametrize("body", [read_twice, also_the_result, quantized_twice])
def test_a_norm_with_other_readers_stays_and_an_event_says_so(graph, same, body):
    got = FuseQuantizeSource()(graph(INPUTS, body))
    refused = Event(
        "FuseQuantizeSource", "relax.nn.rms_norm", "refused", reason="it has other readers"
    )
    assert events.read(got) == (refused,)
    same(got.without_attr(events.ATTRIBUTE), graph(INPUTS, body))


@pytest.mark.parametrize("halved", [["x", "gamma"], ["gate_up"]], ids=["norm", "swiglu"])
def test_another_type_stays_and_an_event_says_so(graph, refused, halved):
    def body(emit, x, gate_up, gamma):
        made = emit(ops.swiglu(gate_up)) if "gate_up" in halved else norm(emit, x, gamma)
        return quantized(emit, made)

    mod = graph(INPUTS, body, dtypes=dict.fromkeys(halved, "float16"))
    assert refused(FuseQuantizeSource(), mod) == ["it is float16: kernels take float32"]


NEAR_MISSES = {
    "an argument": lambda emit, x, gate_up, gamma: quantized(emit, x),
    "another operator": lambda emit, x, gate_up, gamma: quantized(emit, emit(relax.op.abs(x))),
    "another axis": lambda emit, x, gate_up, gamma: quantized(emit, norm(emit, x, gamma, 1)),
    "two axes": lambda emit, x, gate_up, gamma: quantized(emit, norm(emit, x, gamma, [1, 2])),
    "a norm's quantization": lambda emit, x, gate_up, gamma: quantized(
        emit, norm(emit, x, gamma), gamma, source=NORM
    ),
    "no quantization": lambda emit, x, gate_up, gamma: norm(emit, x, gamma),
}
GAMMAS = {"another axis": (7,), "two axes": (7, K)}


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(graph, stays, near_miss):
    inputs = INPUTS
    if near_miss in GAMMAS:
        inputs = {**INPUTS, "x": (1, 7, K), "gamma": GAMMAS[near_miss]}
    stays(FuseQuantizeSource(), graph(inputs, NEAR_MISSES[near_miss]))


def test_a_second_run_changes_nothing(graph, stays):
    def body(emit, x, gate_up, gamma):
        one, other = norm(emit, x, gamma), emit(ops.swiglu(gate_up))
        return emit(relax.Tuple([quantized(emit, one), quantized(emit, other)]))

    stays(FuseQuantizeSource(), FuseQuantizeSource()(graph(INPUTS, body)))
