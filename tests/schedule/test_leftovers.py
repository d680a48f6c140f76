"""What TVM's legalization gives is vectorized and threaded, and computes the same."""

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from mlc_compile.passes import events
from mlc_compile.schedule.kernels import norm
from mlc_compile.schedule.leftovers import RULES, ScheduleLeftovers
from tests.schedule.legalizing import legalized, only_kernel

STEP = ScheduleLeftovers()
LOOPS = {tirx.ForKind.PARALLEL: "parallel", tirx.ForKind.VECTORIZED: "vectorized"}


def kernel_of(body, *shapes):
    return only_kernel(legalized(body, *shapes))


def scheduled(kernel):
    return STEP(IRModule({"kernel": kernel}))["kernel"]


def loops(kernel):
    """Kinds and extents of the loops that are not plain, outermost first."""
    sch = tvm.s_tir.Schedule(kernel)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    nest = [sch.get(loop) for loop in sch.get_loops(block)]
    special = [loop for loop in nest if int(loop.kind) in LOOPS]
    return [LOOPS[int(loop.kind)] for loop in special], [
        int(loop.extent) for loop in special if int(loop.kind) == tirx.ForKind.VECTORIZED
    ]


def add(x, y):
    return relax.op.add(x, y)


@pytest.mark.parametrize(
    ("shape", "kinds", "lanes"),
    [
        pytest.param((1, "n", 64), ["parallel", "vectorized"], 16, id="tokens of a wide row"),
        pytest.param((1, "n", 24), ["parallel", "vectorized"], 8, id="tokens of a narrow row"),
        pytest.param(("n", 7), ["parallel"], None, id="tokens of an odd row"),
        pytest.param((1, 1, 64), ["vectorized"], 16, id="one token"),
        pytest.param((64,), ["vectorized"], 16, id="one dimension"),
        pytest.param((1, 1, 7), [], None, id="nothing to divide"),
    ],
)
def test_vectors_run_inside_and_threads_over_tokens(shape, kinds, lanes):
    kernel = scheduled(kernel_of(add, shape, shape))
    got, extents = loops(kernel)
    assert got == kinds
    assert extents == ([] if lanes is None else [lanes])


CASES = {
    "add": (add, [(1, "n", 64), (1, "n", 64)], lambda x, y: x + y),
    "add to an odd row": (add, [("n", 7), ("n", 7)], lambda x, y: x + y),
    "broadcast": (add, [(1, "n", 32), (32,)], lambda x, y: x + y),
    "permute": (lambda x: relax.op.permute_dims(x, [1, 0]), [(6, "n")], lambda x: x.T),
    "sum": (lambda x: relax.op.sum(x, axis=-1), [("n", 16)], lambda x: x.sum(axis=-1)),
    "softmax": (
        lambda x: relax.op.nn.softmax(x, axis=-1),
        [("n", 9)],
        lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_kernel_computes_the_same(compile_kernel, unwritten, name):
    body, shapes, oracle = CASES[name]
    run = compile_kernel(scheduled(kernel_of(body, *shapes)))
    for n in (1, 5):
        random = np.random.default_rng(n)
        inputs = [
            random.standard_normal([n if s == "n" else s for s in shape]).astype(np.float32)
            for shape in shapes
        ]
        expected = oracle(*inputs)
        *_, got = run(*inputs, unwritten(expected.shape))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)  # a few roundings


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("add", "vectors inside, threads over tokens"),
        ("softmax", "as written: it is not one block without reductions"),
    ],
)
def test_an_event_says_which_rule_scheduled_a_kernel(name, rule):
    body, shapes, _ = CASES[name]
    mod = STEP(IRModule({"kernel": kernel_of(body, *shapes)}))
    assert events.read(mod) == (events.Event("ScheduleLeftovers", "kernel", "done", rule),)


def test_the_last_rule_answers_for_any_kernel():
    for body, shapes, _ in CASES.values():
        assert RULES[-1].apply(tvm.s_tir.Schedule(kernel_of(body, *shapes))) is not None


def test_a_kernel_written_by_hand_is_not_touched():
    mod = IRModule({"rms_norm": norm.rms_norm(32, 1e-6, None)})
    tvm.ir.assert_structural_equal(STEP(mod), mod)


def test_a_second_run_changes_nothing():
    once = STEP(IRModule({"kernel": kernel_of(add, (1, "n", 64), (1, "n", 64))}))
    tvm.ir.assert_structural_equal(STEP(once), once)
