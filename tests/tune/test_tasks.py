"""The tasks of the nano model: every kernel with a space once, with its calls."""

import pytest

from mlc_compile.artifact import Limits
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.target import find_target
from mlc_compile.tune.tasks import representative, tasks_of


@pytest.fixture(scope="module")
def found(nano_plan):
    mod, plan = nano_plan("cpu-x86-64-v4", "q4f16_1")
    with tvm_target(find_target("cpu-x86-64-v4")):
        return tasks_of(mod, plan)


def of(found, family):
    return [task for task in found.tasks if task.family.workload.family == family]


def test_every_workload_is_one_task(found):
    names = [task.name for task in found.tasks]
    assert len(set(names)) == len(names)
    families = {task.family.workload.family for task in found.tasks}
    assert families == {"cpu.int8_gemm", "cpu.int8_gemv", "cpu.flat_step", "cpu.flat_attend"}


def test_matrix_products_are_tuned_under_a_name_of_their_own(nano_plan):
    mod, plan = nano_plan("cpu-aarch64-i8mm", "q4f16_1")
    with tvm_target(find_target("cpu-aarch64-i8mm")):
        found = tasks_of(mod, plan)
    assert [task.calls for task in of(found, "cpu.int8_gemm_pairs")] == [{"prefill": 2}] * 4
    assert of(found, "cpu.int8_gemm") == []


def test_products_on_tiles_are_tuned_under_names_of_their_own(nano_plan):
    """But for the head, which has one row, and a step."""
    mod, plan = nano_plan("cpu-sapphirerapids", "q4f16_1")
    with tvm_target(find_target("cpu-sapphirerapids")):
        found = tasks_of(mod, plan)
    assert {task.family.workload.family for task in found.tasks} == {
        *("cpu.tile_project", "cpu.tile_attend", "cpu.bf16_gemm", "cpu.bf16_swiglu"),
        *("cpu.int8_gemv", "cpu.flat_step"),
    }
    for family in ("cpu.tile_project", "cpu.tile_attend", "cpu.bf16_swiglu"):
        assert [task.calls for task in of(found, family)] == [{"prefill": 2}], family
    assert [task.calls for task in of(found, "cpu.bf16_gemm")] == [{"prefill": 2}] * 2
    assert {one.name for one in found.untunable} >= {"mlc.round_act"}


def test_calls_are_those_of_a_token_and_of_a_prompt(found):
    """Two layers: qkv, o, gate_up and down each twice, the head once in both functions."""
    gemms = [task.calls for task in of(found, "cpu.int8_gemm")]
    gemvs = [task.calls for task in of(found, "cpu.int8_gemv")]
    assert gemms == [{"prefill": 2}] * 4
    assert sorted(gemvs, key=len) == [{"decode": 2}] * 4 + [{"decode": 1, "prefill": 1}]


def test_any_number_of_tokens_stands_for_some(found):
    (attend,) = of(found, "cpu.flat_attend")
    tokens = [s.arguments[0].shape[1] for s in attend.situations]
    assert tokens == [1, 16, 64]  # 64: the longest call of this plan
    weights = [s.weight for s in attend.situations]
    assert weights == sorted(weights)


def test_one_token_is_decoded_deep_in_the_context(found):
    (step,) = of(found, "cpu.flat_step")
    (situation,) = step.situations
    assert situation.length == 255
    assert situation.layers == 2


def test_every_parameter_is_described(found):
    for task in found.tasks:
        func = task.family.build(task.family.space.default)
        assert len(func.params) == len(task.family.operands)
        assert [o.role for o in task.family.operands].count("result") == 1


def test_what_has_no_space_is_listed_with_its_reason(found):
    reasons = {one.name: one.reason for one in found.untunable}
    assert reasons["mlc.quantize_act"] == "its rule has one way to write it"
    assert all(reasons.values())
    assert not {"mlc.int8_gemv", "mlc.int8_matmul"} & set(reasons)


@pytest.mark.parametrize(
    ("chunk", "tokens"),
    [(1, (1,)), (100, (1, 16, 100)), (512, (1, 16, 128, 512)), (2048, (1, 16, 128, 512, 2048))],
)
def test_representative_tokens_end_with_the_longest_call(chunk, tokens):
    assert representative(Limits(context=4096, prefill_chunk=chunk)) == tokens
