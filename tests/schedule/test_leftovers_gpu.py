"""What TVM's legalization gives has threads on a GPU, and computes the same."""

import msgspec
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

from mlc_compile.passes import events
from mlc_compile.schedule.kernels.gpu import activation
from mlc_compile.schedule.leftovers import ScheduleLeftovers, gpu_rules
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    simulate,
    source,
)
from tests.schedule.legalizing import legalized, only_kernel


def kernel_of(body, *shapes):
    """The one kernel that TVM's own fusion leaves of `body`."""
    mod = relax.transform.AnnotateTIROpPattern()(legalized(body, *shapes))
    return only_kernel(relax.transform.FuseTIR()(relax.transform.FuseOps()(mod)))


def scheduled(kernel, row):
    """The kernel, and which rule scheduled it."""
    mod = ScheduleLeftovers(device_of(row))(IRModule({"kernel": kernel}))
    (event,) = events.read(mod)
    return mod["kernel"], event.reason


def last_row(x):
    return relax.op.strided_slice(x, [1], [-1], [2**31 - 1], assume_inbound=False)


def biased_and_cast(x, y):
    return relax.op.astype(relax.op.multiply(relax.op.add(x, y), y), "float16")


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


ELEMENT, ROW, ALONE = (rule.does for rule in gpu_rules(device_of("webgpu")))

CASES = {
    "add": (relax.op.add, [(1, "n", 64), (1, "n", 64)], np.add, ELEMENT),
    "add of odd rows": (relax.op.add, [("n", 7), ("n", 7)], np.add, ELEMENT),
    "broadcast": (relax.op.add, [(1, "n", 32), (32,)], np.add, ELEMENT),
    "permute": (lambda x: relax.op.permute_dims(x, [1, 0]), [(6, "n")], np.transpose, ELEMENT),
    "last position": (last_row, [(1, "n", 40)], lambda x: x[:, -1:], ELEMENT),
    "fused": (biased_and_cast, [("n", 9), (9,)], lambda x, y: (x + y) * y, ELEMENT),
    "one number": (relax.op.add, [(), ()], np.add, ELEMENT),
    "sum": (lambda x: relax.op.sum(x, axis=-1), [("n", 100)], lambda x: x.sum(-1), ROW),
    "sum of all": (relax.op.sum, [(50,)], np.sum, ROW),
    "max of columns": (lambda x: relax.op.max(x, axis=0), [("n", 9)], lambda x: x.max(0), ROW),
    "softmax": (lambda x: relax.op.nn.softmax(x, axis=-1), [("n", 70)], softmax, ROW),
    "matmul": (relax.op.matmul, [("n", 9), (9, 7)], np.matmul, ROW),
}


@every_row
@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_kernel_computes_the_same(row, name):
    body, shapes, oracle, rule = CASES[name]
    if (row, rule) == ("metal", ROW):
        pytest.skip("the interpreter knows no barrier of a SIMD group, which TVM writes there")
    kernel, used = scheduled(kernel_of(body, *shapes), row)
    assert used == rule
    check(kernel, row, shapes, oracle)


def check(kernel, row, shapes, oracle):
    dtype = str(kernel.params[-1].ty.dtype)
    for n in (1, 5, 33):
        random = np.random.default_rng(n)
        inputs = [
            np.asarray(random.standard_normal([n if s == "n" else s for s in shape]), np.float32)
            for shape in shapes
        ]
        expected = np.asarray(oracle(*inputs))
        got = np.full(expected.shape, np.nan, dtype)
        simulate(kernel, row, *inputs, got)
        # Sums of up to a hundred numbers near 1, in another order; or float16's rounding.
        near = 2e-3 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(got, expected, rtol=near, atol=near)


@pytest.mark.parametrize("name", CASES)
def test_the_last_rule_answers_for_any_kernel(name):
    body, shapes, oracle, _ = CASES[name]
    rule = gpu_rules(device_of("webgpu"))[-1]
    sch = rule.apply(tvm.s_tir.Schedule(kernel_of(body, *shapes)))
    check(sch.mod["main"].with_attr("tirx.is_scheduled", True), "webgpu", shapes, oracle)


def test_blocks_take_turns_where_the_grid_is_short():
    device = msgspec.structs.replace(device_of("vulkan"), grid=300)
    add = kernel_of(relax.op.add, (400, 256), (400, 256))
    kernel = ScheduleLeftovers(device)(IRModule({"kernel": add}))["kernel"]
    x = np.random.default_rng(0).standard_normal((400, 256)).astype(np.float32)
    y = np.full_like(x, np.nan)
    (launch,) = simulate(kernel, "vulkan", x, x, y)
    assert launch.grid[0] <= 300
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_them(row):
    kernels = [scheduled(kernel_of(*CASES[n][:1], *CASES[n][1]), row)[0] for n in CASES]
    assert source(row, *kernels)


def test_a_kernel_written_by_hand_is_not_touched():
    mod = IRModule({"swiglu": activation.swiglu(32, None, device_of("metal"))})
    assert ScheduleLeftovers(device_of("metal"))(mod)["swiglu"].same_as(mod["swiglu"])
