"""What a page calls to sample: names, types and kernels as web-llm looks them up."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile.passes.add_page_sampler import (
    ARGSORT,
    BIAS,
    BITMASK,
    DRAW,
    IN_PLACE,
    PENALTY,
    AddPageSampler,
)
from mlc_compile.passes.add_sampler import SOFTMAX
from mlc_compile.passes.plan_memory import read as read_memory
from mlc_compile.pipeline import phases
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.target import find_target, target_names

VOCAB = 6


def stub(*arguments):
    """A kernel of (name, shape, dtype) arguments that does nothing."""
    with v.kernel() as builder:
        for name, shape, dtype in arguments:
            v.argument(name, shape, dtype)
        tvm.tirx.script.builder.evaluate(0)
    return builder.get()


def kernels(vocab):
    b, row = v.size("rows"), (1, vocab)
    values, order = ("values", row, "float32"), ("order", row, "int32")
    numbers = [(name, (1,), dtype) for name, dtype in (("u", "float32"), ("i", "int32"))]
    return {
        SOFTMAX: stub(
            ("logits", (b, 1, vocab), "float32"),
            ("temperature", (b,), "float32"),
            ("probabilities", (b, 1, vocab), "float32"),
            ("work", (b, 7), "float32"),
        ),
        ARGSORT: stub(("x", row, "float32"), values, order, ("work", (5,), "uint32")),
        DRAW: stub(
            values,
            order,
            *numbers,
            ("p", (1,), "float32"),
            ("token", (1,), "int32"),
            ("work", (3,), "float32"),
        ),
        **{name: stub(("logits", (b, vocab), "float32")) for name in (BIAS, PENALTY, BITMASK)},
    }


@pytest.fixture
def model(graph):
    """A module with a function that gives logits and a cache, as the model's `decode`."""

    def body(emit, x, kv):
        return emit(relax.Tuple([emit(relax.op.nn.relu(x)), kv]))

    return graph({"x": (1, 1, VOCAB), "kv": None}, body, name="decode")


@pytest.fixture
def added(model):
    return AddPageSampler(kernels)(model)


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def test_probabilities_are_sorted_with_their_tokens(added):
    func = added[ARGSORT]
    tvm.ir.assert_structural_equal([p.ty for p in func.params], [tensor(1, VOCAB)])
    both = relax.TupleType([tensor(1, VOCAB), tensor(1, VOCAB, dtype="int32")])
    tvm.ir.assert_structural_equal(func.ret_ty, both)


def test_a_token_is_drawn_from_both(added):
    func, one = added[DRAW], tensor(1)
    given = [tensor(1, VOCAB), tensor(1, VOCAB, dtype="int32"), one, tensor(1, dtype="int32"), one]
    tvm.ir.assert_structural_equal([p.ty for p in func.params], given)
    tvm.ir.assert_structural_equal(func.ret_ty, tensor(1, dtype="int32"))


@pytest.mark.parametrize("name", IN_PLACE)
def test_kernels_that_the_page_calls_survive_without_a_caller(added, name):
    kept = relax.transform.DeadCodeElimination()(added)[name]
    assert isinstance(kept, tirx.PrimFunc)
    assert str(kept.attrs["global_symbol"]) == name


def test_other_functions_stay_and_all_are_well_formed(model, added):
    relax.analysis.well_formed(added)  # raises where it is not
    tvm.ir.assert_structural_equal(added["decode"], model["decode"])


def test_a_second_run_changes_nothing(added, stays):
    stays(AddPageSampler(kernels), added)


def test_a_module_without_logits_stays(graph, stays):
    stays(AddPageSampler(kernels), graph({"x": (2,)}, lambda emit, x: emit(relax.op.abs(x))))


@pytest.mark.parametrize("name", target_names())
def test_it_runs_where_a_page_does(nano_plan, name):
    _, plan = nano_plan(name, "q4f32_1")
    run = [str(step.info.name) for phase in phases(plan) for step in phase.passes]
    assert ("AddPageSampler" in run) is find_target(name).page_runs


def test_workspaces_are_planned(nano_after):
    planned = {f.name: f for f in read_memory(nano_after("memory", "webgpu", "q4f32_1"))}
    assert planned[DRAW].result_bytes == 4  # the token is all that is left outside
    for name in (ARGSORT, DRAW):
        assert planned[name].planned_bytes == planned[name].lower_bound_bytes > 4, name
