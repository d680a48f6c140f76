"""The functions that choose a token: their kernels, the check of the logit, who gets them."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.passes.add_sampler import ARGMAX, SAMPLE, SOFTMAX, AddSampler
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
    b = v.size("rows")
    logits, one = ("logits", (1, vocab), "float32"), ("float32", "int32", "float32", "float32")
    settings = [(f"setting{i}", (1,), dtype) for i, dtype in enumerate(one)]
    token = ("token", (1,), "int32")
    return {
        ARGMAX: stub(logits, token, ("work", (3, 2), "float32")),
        SAMPLE: stub(logits, *settings, token, *((w, (4, 5), "float32") for w in "ab")),
        SOFTMAX: stub(
            ("logits", (b, 1, vocab), "float32"),
            ("temperature", (b,), "float32"),
            ("probabilities", (b, 1, vocab), "float32"),
            ("work", (b, 7), "float32"),
        ),
    }


@pytest.fixture
def model(graph):
    """A module with a function that gives logits and a cache, as the model's `decode`."""

    def body(emit, x, kv):
        return emit(relax.Tuple([emit(relax.op.nn.relu(x)), kv]))

    return graph({"x": (1, 1, VOCAB), "kv": None}, body, name="decode")


@pytest.fixture
def added(model):
    return AddSampler(kernels)(model)


def written(func):
    """What a function's bindings are, one line each."""
    (block,) = func.body.blocks
    return [binding.value for binding in block.bindings]


@pytest.mark.parametrize(
    ("name", "settings", "workspaces"),
    [(ARGMAX, [], [(3, 2)]), (SAMPLE, ["float32", "int32", "float32", "float32"], [(4, 5)] * 2)],
)
def test_a_token_is_the_kernels_if_its_logit_is_finite(
    added, same, graph, name, settings, workspaces
):
    func = added[name]
    inputs = {"logits": (1, 1, VOCAB), **{f"setting{i}": (1,) for i in range(len(settings))}}
    dtypes = {f"setting{i}": dtype for i, dtype in enumerate(settings)}
    called, check = (call.args[0] for call in written(func) if ops.is_call(call, "relax.call_tir"))

    def body(emit, logits, *given):
        row = emit(relax.op.reshape(logits, [1, VOCAB]))
        results = [relax.TensorType([1], "int32")]
        results += [relax.TensorType(shape, "float32") for shape in workspaces]
        token = emit(relax.TupleGetItem(emit(relax.call_tir(called, [row, *given], results)), 0))
        return emit(relax.call_tir(check, [token, row], relax.TensorType([1], "int32")))

    alone = graph(inputs, body, name=name, dtypes=dtypes, also=kernels_of(added))
    got = kernels_of(added)
    got.update_func(alone.get_global_var(name), func)
    same(got, alone)
    tvm.ir.assert_structural_equal(bare(added[called]), bare(kernels(VOCAB)[name]))


def kernels_of(mod):
    return tvm.IRModule({gv: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)})


def bare(kernel):
    """A kernel without the name that a module gave it."""
    return kernel.without_attr("global_symbol") if "global_symbol" in kernel.attrs else kernel


def test_softmax_takes_any_number_of_rows_and_sizes_its_workspace_by_them(added):
    func = added[SOFTMAX]
    logits, temperature = (param.ty for param in func.params)
    b = temperature.shape.values[0]
    assert logits.shape.values[0].same_as(b)
    call, _ = written(func)
    probabilities, work = call.ty.fields
    tvm.ir.assert_structural_equal(probabilities, logits)
    tvm.ir.assert_structural_equal(func.ret_ty, logits)
    assert work.shape.values[0].same_as(b)
    assert int(work.shape.values[1]) == 7


def test_other_functions_stay_and_all_are_well_formed(model, added):
    relax.analysis.well_formed(added)  # raises where it is not
    tvm.ir.assert_structural_equal(added["decode"], model["decode"])


def test_a_second_run_changes_nothing(added, stays):
    stays(AddSampler(kernels), added)


def test_a_module_without_logits_stays(graph, stays):
    stays(AddSampler(kernels), graph({"x": (2,)}, lambda emit, x: emit(relax.op.abs(x))))


@pytest.mark.parametrize("name", target_names())
def test_it_runs_for_devices_that_we_run_ourselves(nano_plan, name):
    row, (_, plan) = find_target(name), nano_plan(name, "q4f32_1")
    run = [str(step.info.name) for phase in phases(plan) for step in phase.passes]
    assert ("AddSampler" in run) is (row.device is not None and not row.page_runs)


def test_workspaces_are_planned(nano_after):
    planned = {f.name: f for f in read_memory(nano_after("memory", "vulkan", "q4f32_1"))}
    for name in (ARGMAX, SAMPLE):
        assert planned[name].result_bytes == 4, name  # the token is all that is left outside
        assert planned[name].planned_bytes == planned[name].lower_bound_bytes > 4, name
