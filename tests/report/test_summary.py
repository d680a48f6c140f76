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
    return summarize(manifest, {"prefill": 300, "decode": 20}, EVENTS)


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
            "functions": {"prefill": 300, "decode": 20},
        },
        "weights": [
            {
                "name": "q+k",
                "sources": ["q.weight", "k.weight"],
                "layout": "rows16",
                "nbytes": 28,
            }
        ],
        "events": [
            {"source": "MergeProjections", "subject": "q + k", "outcome": "done", "reason": ""},
            {"source": "FuseThis", "subject": "q", "outcome": "refused", "reason": "odd"},
        ],
    }


def test_the_file_can_be_read_back(report):
    assert msgspec.json.decode(pretty_json(report), type=Report) == report
