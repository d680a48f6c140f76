"""Operators become kernels by the target's rules; equal kernels are one function."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.rewrite import bindings_of
from mlc_compile.schedule.lower_operators import RULES, LowerOperators
from mlc_compile.target import find_target

STEP = LowerOperators(find_target("cpu"))
STEPS = {"cpu": STEP, "gpu": LowerOperators(find_target("cuda-sm80"))}


def module(shapes, body, dtypes=()):
    """A function of tensors of these shapes; "n" is symbolic, dtypes are float32 if not given."""
    sizes = {"n": tirx.Var("n", "int64")}
    builder = relax.BlockBuilder()
    params = [
        relax.Var(
            f"x{i}",
            relax.TensorType(
                [sizes.get(s, s) for s in shape], dtypes[i] if i < len(dtypes) else "float32"
            ),
        )
        for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    return builder.get()


def kernels(mod):
    return sorted(gv.name_hint for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))


def done(mod):
    return {e.subject: e.reason for e in events.read(mod) if e.source == "LowerOperators"}


def matmuls(*widths):
    """One quantized matmul after another, each of its own weights."""

    def body(emit, x, *weights):
        for n, w in zip(widths, weights, strict=True):
            x = emit(ops.quantized_matmul(x, [w], ops.Matrix(n, "q0f32")))
        return x

    return body


def test_equal_kernels_are_one_function_and_the_report_counts_its_calls():
    weight = (4, 64, 16)
    mod = STEP(module([(1, "n", 64), weight, weight], matmuls(64, 64)))
    assert kernels(mod) == ["gemm"]
    assert done(mod) == {"gemm": "2 calls"}


def test_other_shapes_are_other_kernels():
    mod = STEP(module([(1, "n", 64), (4, 64, 16), (2, 64, 16)], matmuls(64, 32)))
    assert len(kernels(mod)) == 2
    assert sum(int(reason.split()[0]) for reason in done(mod).values()) == 2


def test_rows_that_are_padding_make_another_kernel():
    """w[63, 64] and w[64, 64] are packed alike, but not multiplied alike."""
    mod = STEP(module([(1, "n", 64), (4, 64, 16), (4, 63, 16)], matmuls(63, 64)))
    assert len(kernels(mod)) == 2


@pytest.mark.parametrize(("m", "kernel"), [(1, "gemv"), ("n", "gemm")])
def test_one_token_has_a_kernel_of_its_own(m, kernel):
    assert kernels(STEP(module([(1, m, 64), (4, 64, 16)], matmuls(64)))) == [kernel]


def rms_norm(axes):
    return lambda emit, x, gamma: emit(relax.op.nn.rms_norm(x, gamma, axes, 1e-6))


@pytest.mark.parametrize("axes", [-1, [2]])
def test_rms_norm_of_rows_has_a_kernel(axes):
    mod = STEP(module([(1, "n", 32), (32,)], rms_norm(axes)))
    assert kernels(mod) == ["rms_norm"]


@pytest.mark.parametrize(
    ("shapes", "axes", "dtype"),
    [
        pytest.param([(1, 32, 32), (32,)], 1, "float32", id="another axis"),
        pytest.param([("n", 32), (32,)], -1, "float32", id="two dimensions"),
        pytest.param([(1, "n", 2, 32), (32,)], -1, "float32", id="four dimensions"),
        pytest.param([(1, 4, 32), (4, 32)], [1, 2], "float32", id="two axes"),
        pytest.param([(2, "n", 32), (32,)], -1, "float32", id="two sequences"),
        pytest.param([("n", 1, 32), (32,)], -1, "float32", id="any number of sequences"),
        pytest.param([(1, "n", 32), (32,)], -1, "float16", id="another type"),
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_what_no_rule_answers_is_left_to_tvm_and_an_event_says_so(step, shapes, axes, dtype):
    before = module(shapes, rms_norm(axes), dtypes=[dtype, dtype])
    mod = STEPS[step](before)
    tvm.ir.assert_structural_equal(mod.without_attr(events.ATTRIBUTE), before)
    reason = "no kernel of ours takes its arguments: TVM's does"
    refused = events.Event("LowerOperators", "relax.nn.rms_norm", "refused", reason)
    assert events.read(mod) == (refused,)


@pytest.mark.parametrize("answer", ["no rule", "a rule without an answer"])
def test_an_operator_of_ours_that_no_kernel_runs_is_our_bug(monkeypatch, answer):
    rules = {"mlc.quantize_act": lambda _call, _target: None} if "answer" in answer else {}
    monkeypatch.setitem(RULES, "cpu", rules)
    mod = module(
        [(1, "n", 64)], lambda emit, x: emit(ops.quantize_act([x], ops.Source("plain", 64)))
    )
    with pytest.raises(AssertionError, match=r"mlc\.quantize_act has no kernel on cpu"):
        STEP(mod)


def test_operators_of_tvm_stay():
    mod = module([(1, "n", 32), (1, "n", 32)], lambda emit, x, y: emit(relax.op.add(x, y)))
    tvm.ir.assert_structural_equal(STEP(mod), mod)


def test_results_keep_their_shapes():
    def body(emit, gate_up):
        return emit(ops.swiglu(gate_up))

    mod = STEP(module([(1, "n", 64)], body))
    (call,) = (v for v in bindings_of(mod["main"]).values() if ops.is_call(v, "relax.call_tir"))
    n = mod["main"].params[0].ty.shape.values[1]
    tvm.ir.assert_structural_equal(call.ty, relax.TensorType([1, n, 32], "float32"))


def test_a_second_run_changes_nothing():
    once = STEP(module([(1, "n", 64), (4, 64, 16)], matmuls(64)))
    tvm.ir.assert_structural_equal(STEP(once), once)
