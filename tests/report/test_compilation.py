"""What the recorder reads off the nano model, against what its config says."""

import functools
import math
import re

import pytest

from mlc_compile.driver.clock import Clock
from mlc_compile.driver.optimize import optimize
from mlc_compile.emit.backend import emitter_of
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.progress import SILENT
from mlc_compile.report.compilation import Recorder

FLOAT = 4
WRITES = re.compile("append|project")  # in the names of what touches the cache to write to it
HIDDEN, QKV, HEADS, SWIGLU, LAYERS = 64, 256, 128, 192, 2  # of nano-qwen3


@pytest.fixture(scope="module")
def recorded(nano_plan):
    """`recorded(scheme, **choices)`: (the module, what was recorded)."""

    @functools.cache
    def record(scheme, target="cpu", **choices):
        mod, plan = nano_plan(target, scheme, **choices)
        recorder = Recorder(plan.kv, plan.limits)
        with emitter_of(plan.target).tvm_target(plan.target):
            mod = optimize(mod, plan, Clock(SILENT), (recorder,))
        return mod, recorder.compilation()

    return record


def by_function(items):
    return {item.function: item for item in items}


def test_a_decoded_token_writes_what_the_fused_kernels_give(recorded):
    _, compilation = recorded("q4f16_1")
    decode = by_function(compilation.traffic)["decode"]
    # In each layer qkv, attention's result, o, silu(gate) up, down; rope's angles once.
    layer = QKV + HEADS + HIDDEN + SWIGLU + HIDDEN
    assert decode.written_bytes == FLOAT * (LAYERS * layer + 32)
    assert decode.launches == LAYERS * 5 + 2  # and the head


def test_unfused_operators_write_everything_once(recorded):
    _, compilation = recorded("q4f16_1")
    decode = by_function(compilation.traffic)["decode"]
    q, kv, gate = 128, 64, 192
    norms, residuals = 2 * HIDDEN, 2 * HIDDEN
    attention = q + 2 * kv + QKV + HEADS + HIDDEN
    mlp = 4 * gate + HIDDEN
    assert decode.unfused_bytes == FLOAT * (LAYERS * (norms + residuals + attention + mlp) + HIDDEN)


def test_every_weight_is_read_once_a_token_and_the_cache_in_full(recorded):
    mod, compilation = recorded("q4f16_1")
    decode = by_function(compilation.traffic)["decode"]
    parts = [part for tensor in read_plan(mod).tensors for part in tensor.parts]
    assert decode.weight_bytes == sum(part.nbytes for part in parts)  # tied: the head reads all
    layers, heads, d, f16, context = LAYERS, 2, 32, 2, 256
    assert decode.cache_bytes == 2 * layers * heads * d * f16 * (context + 1)


def test_operations_of_a_prompt_are_two_a_weight_and_token(recorded):
    _, compilation = recorded("q0f32", chunk=64)
    matrices = {
        name: math.prod(shape)
        for name, shape in compilation.shapes.items()
        if len(shape) == 2 and "embed" not in name
    }
    gemms = [
        k for k in compilation.kernels if k.function == "prefill" and k.name.startswith("gemm")
    ]
    assert sum(k.operations for k in gemms) == 2 * 64 * sum(matrices.values())


def test_a_disabled_fusion_writes_more(recorded):
    _, fused = recorded("q4f16_1")
    _, without = recorded("q4f16_1", disabled=("FuseQuantizeSource",))
    for function in ("decode", "prefill"):
        more = by_function(without.traffic)[function].written_bytes
        assert more > by_function(fused.traffic)[function].written_bytes


def test_stages_begin_with_the_model_and_end_with_the_kernels(recorded):
    _, compilation = recorded("q4f16_1")
    graphs = {graph.name: graph for graph in compilation.graphs}
    decode = by_function(compilation.traffic)["decode"]
    first, last = graphs["decode"].stages[0], graphs["decode"].stages[-1]
    assert (first.calls, first.written_bytes) == (decode.unfused_calls, decode.unfused_bytes)
    assert (last.calls, last.written_bytes) == (decode.launches, decode.written_bytes)
    assert "FuseSwiGLU" in [stage.step for stage in graphs["decode"].stages]
    before = graphs["decode"].before
    assert sum(s.times * len(s.operators) for s in before) == decode.unfused_calls
    assert before[0].times == LAYERS


def test_origins_tell_rules_from_the_fallback(recorded):
    _, compilation = recorded("q4f16_1")
    origins = {kernel.name: (kernel.origin, kernel.how) for kernel in compilation.kernels}
    assert origins["flat_step"] == ("rule", "")
    assert origins["last_position"] == ("rule", "vectors inside, threads over tokens")


@pytest.mark.parametrize("target", ["cpu-x86-64-v4", "cpu-sapphirerapids"])
def test_the_runtime_s_attention_does_the_same_work_as_ours(recorded, target):
    def attention(compilation, function):
        return sum(
            k.operations
            for k in compilation.kernels
            if k.function == function and k.cache_bytes and not WRITES.search(k.name)
        )

    _, ours = recorded("q4f16_1", target)
    _, runtime_s = recorded("q4f16_1", "cuda-sm90")
    for function in ("decode", "prefill"):
        theirs = attention(runtime_s, function)
        assert theirs == attention(ours, function) > 0
