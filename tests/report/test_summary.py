"""`report.json` says what the manifest plans and what passes decided."""

import msgspec
import pytest

from mlc_compile.artifact import (
    Check,
    FlatKV,
    Limits,
    Manifest,
    Part,
    PlannedTensor,
    Versions,
    WeightPlan,
    pretty_json,
)
from mlc_compile.passes.events import Event
from mlc_compile.passes.plan_memory import FunctionMemory, KernelStep, PlacedTensor
from mlc_compile.report.compilation import Compilation
from mlc_compile.report.schema import FunctionGraph, Kernel, Operator, Stage, Stretch, Traffic
from mlc_compile.report.summary import Report, summarize

PARTS = (
    Part(name="q+k.a", dtype="float16", shape=(3, 2), offset=0, nbytes=12),
    Part(name="q+k.b", dtype="int32", shape=(4,), offset=64, nbytes=16),
)
PLAN = WeightPlan(
    tensors=(
        PlannedTensor(name="q+k", sources=("q.weight", "k.weight"), layout="rows16", parts=PARTS),
    ),
    nbytes=80,
)
EVENTS = (Event("MergeProjections", "q + k", "done"), Event("FuseThis", "q", "refused", "odd"))
FUNCTIONS = (
    FunctionMemory(
        name="prefill",
        naive_bytes=500,
        static_plan_bytes=400,
        planned_bytes=300,
        storages=1,
        lower_bound_bytes=290,
        result_bytes=40,
        workspace_bytes=64,
        steps=(KernelStep("gemm", 290, 64),),
        tensors=(PlacedTensor("gemm", 290, 10, 0, 0),),
    ),
)

OPERATOR = Operator(name="gemm", weights=("q+k",), written_bytes=64)
COMPILATION = Compilation(
    graphs=(
        FunctionGraph(
            name="prefill",
            tokens=16,
            before=(Stretch(times=2, operators=(OPERATOR,)),),
            after=(),
            stages=(Stage(phase="import", step="NameWeights", calls=2, written_bytes=128),),
        ),
    ),
    traffic=(
        Traffic(
            function="prefill",
            tokens=16,
            before=0,
            launches=1,
            weight_bytes=28,
            cache_bytes=0,
            read_bytes=8,
            written_bytes=64,
            unfused_bytes=128,
            unfused_calls=2,
        ),
    ),
    kernels=(
        Kernel(
            function="prefill",
            name="gemm",
            origin="rule",
            how="",
            calls=1,
            weights=("q+k",),
            weight_bytes=28,
            cache_bytes=0,
            read_bytes=8,
            written_bytes=64,
            operations=200,
            intensity=2.0,
        ),
    ),
    shapes={"q.weight": (2, 4), "k.weight": (1, 4)},
)


@pytest.fixture
def report():
    manifest = Manifest(
        model="nano",
        quant="q4f16_1",
        target="cpu",
        triple="x86_64-linux-gnu",
        linker="cc",
        versions=Versions(mlc_compile="1", tvm="2", tvm_ffi="3"),
        libraries=(),
        limits=Limits(context=40, prefill_chunk=16),
        kv=FlatKV(layers=2, kv_heads=1, head_dim=8, page=32, dtype="float16"),
        vocab_size=100,
        plan=PLAN,
        plan_digest=PLAN.digest(),
        activation_bytes=300,
        files=(),
        check=Check(status="not run"),
    )
    return summarize(manifest, FUNCTIONS, EVENTS, COMPILATION)


def test_the_file_has_these_keys_and_values(report):
    assert msgspec.json.decode(pretty_json(report)) == {
        "model": "nano",
        "quant": "q4f16_1",
        "target": "cpu",
        "limits": {"context": 40, "prefill_chunk": 16},
        "memory": {
            "weights": 80,
            "kv_cache": 2 * 2 * 2 * 8 * 64,  # k and v, float16, two layers, two pages of 32
            "activations": 300,
            "functions": [
                {
                    "name": "prefill",
                    "naive_bytes": 500,
                    "static_plan_bytes": 400,
                    "planned_bytes": 300,
                    "storages": 1,
                    "lower_bound_bytes": 290,
                    "result_bytes": 40,
                    "workspace_bytes": 64,
                    "steps": [{"kernel": "gemm", "live_bytes": 290, "workspace_bytes": 64}],
                    "tensors": [
                        {"name": "gemm", "nbytes": 290, "offset": 10, "first": 0, "last": 0}
                    ],
                }
            ],
        },
        "weights": [
            {
                "name": "q+k",
                "sources": ["q.weight", "k.weight"],
                "layout": "rows16",
                "nbytes": 28,
                "shape": [3, 4],
                "bits": 18.667,  # 28 bytes for 12 weights
            }
        ],
        "events": [
            {"source": "MergeProjections", "subject": "q + k", "outcome": "done", "reason": ""},
            {"source": "FuseThis", "subject": "q", "outcome": "refused", "reason": "odd"},
        ],
        "graphs": [
            {
                "name": "prefill",
                "tokens": 16,
                "before": [
                    {
                        "times": 2,
                        "operators": [
                            {"name": "gemm", "weights": ["q+k"], "written_bytes": 64},
                        ],
                    }
                ],
                "after": [],
                "stages": [
                    {"phase": "import", "step": "NameWeights", "calls": 2, "written_bytes": 128}
                ],
            }
        ],
        "traffic": [
            {
                "function": "prefill",
                "tokens": 16,
                "before": 0,
                "launches": 1,
                "weight_bytes": 28,
                "cache_bytes": 0,
                "read_bytes": 8,
                "written_bytes": 64,
                "unfused_bytes": 128,
                "unfused_calls": 2,
            }
        ],
        "kernels": [
            {
                "function": "prefill",
                "name": "gemm",
                "origin": "rule",
                "how": "",
                "calls": 1,
                "weights": ["q+k"],
                "weight_bytes": 28,
                "cache_bytes": 0,
                "read_bytes": 8,
                "written_bytes": 64,
                "operations": 200,
                "intensity": 2.0,
            }
        ],
        "tuning": [],
        "resources": [],
        "shaders": [],
    }


def test_the_file_can_be_read_back(report):
    assert msgspec.json.decode(pretty_json(report), type=Report) == report
