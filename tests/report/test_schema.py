"""What `inspect` reads is what `compile` writes, field by field."""

import msgspec
import pytest

from mlc_compile.passes.events import Event
from mlc_compile.passes.plan_memory import FunctionMemory, KernelStep, PlacedTensor
from mlc_compile.report import schema, summary


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (summary.Report, schema.ReadReport),
        (summary.Memory, schema.Memory),
        (summary.StoredWeight, schema.StoredWeight),
        (Event, schema.Event),
        (FunctionMemory, schema.FunctionPlan),
        (KernelStep, schema.Step),
        (PlacedTensor, schema.Placed),
    ],
)
def test_both_have_the_same_fields(written, read):
    assert written.__struct_fields__ == read.__struct_fields__


def test_an_artifact_s_report_is_read_whole(nano_artifact):
    report = msgspec.json.decode(
        (nano_artifact / "report.json").read_bytes(), type=schema.ReadReport
    )
    assert {k.function for k in report.kernels} == {"decode", "prefill"}
    assert {one.name for one in report.memory.functions} >= {"decode", "prefill"}
    embedding = next(w for w in report.weights if w.name == "model.embed_tokens")
    assert embedding.shape == (512, 64)
    assert embedding.bits == 4.5  # a code of 4 bits, and a float16 for 32 of them
