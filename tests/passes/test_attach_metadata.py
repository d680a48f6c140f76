"""`_metadata()` tells parameters and limits as JSON."""

import json

import pytest
from tvm import relax

from mlc_compile.passes.attach_metadata import AttachMetadata
from mlc_compile.passes.bind_weights import BindWeights, read_plan

FACTS = (("model_type", "qwen3"), ("prefill_chunk_size", 512), ("note", 'a "quote" and ü'))


@pytest.fixture
def bound(graph, weight):
    """A module with one weight in its plan."""

    def body(emit, x):
        gamma = emit(weight("model.norm.weight", 4, layout="wide"))
        return emit(relax.op.multiply(x, gamma))

    return BindWeights()(graph({"x": (1, "n", 4)}, body))


def told(module):
    return json.loads(str(module["_metadata"].body.body.value))


def test_facts_and_parameters_are_told_in_plan_order(bound):
    got = told(AttachMetadata(FACTS)(bound))
    assert {key: got[key] for key, _ in FACTS} == dict(FACTS)
    (part,) = read_plan(bound).tensors[0].parts
    assert got["params"] == [{"name": part.name, "shape": [4], "dtype": "float32"}]


def test_other_functions_and_attributes_stay(bound):
    import tvm

    got = AttachMetadata(FACTS)(bound)
    tvm.ir.assert_structural_equal(got["main"], bound["main"])
    assert read_plan(got) == read_plan(bound)


def test_a_second_run_changes_nothing(bound, stays):
    step = AttachMetadata(FACTS)
    stays(step, step(bound))
