"""Every int8 instruction that this CPU has, against numpy's integers."""

import msgspec
import numpy as np
import pytest

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DOTS, dot_for
from mlc_compile.schedule.kernels.int8 import STEPS as GROUP_STEPS
from mlc_compile.target import find_target

STEPS = 64
EXTREMES = {
    "largest": (15, 127, 0),
    "most negative": (15, -127, 0),
    "no weight": (0, 127, 3),
    "no activation": (15, 0, -3),
    "onto large sums": (15, 127, 2**31 - 1 - 4 * 15 * 127 * STEPS),
    "onto small sums": (15, -127, -(2**31) + 4 * 15 * 127 * STEPS),
}


def steps(dot):
    """sums[16] += codes[STEPS, 16 x 4] . acts[STEPS, 4], a step after the other.

    All in one vector if it holds them, else a group at a time.
    """
    with v.kernel() as builder:
        sums = v.argument("sums", (1, v.LANES), "int32")
        codes = v.argument("codes", (STEPS, v.LANES), "int32")
        acts = v.argument("acts", (STEPS,), "int32")

        def add(held, count, first):
            for i in range(first, first + count):
                dot.add(held, 0, v.load(codes, i, 0), v.splat_i32(acts[i]))

        if dot.widen is None:
            held = dot.sums(1)
            v.store(v.load(sums, 0, 0), *held[0], 0)
            add(held, STEPS, 0)
            v.store(dot.total(held, 0), sums, 0, 0)
        else:
            for first in range(0, STEPS, GROUP_STEPS):
                held = dot.sums(1)
                add(held, GROUP_STEPS, first)
                v.store(v.load(sums, 0, 0) + dot.total(held, 0), sums, 0, 0)
    return builder.get()


@pytest.fixture
def multiply(compile_kernel, dot_row):
    """`multiply(codes u8[STEPS, 16, 4], acts i8[STEPS, 4], start)`: what the CPU computes."""
    run = compile_kernel(steps(dot_for(dot_row)), dot_row.name)

    def call(codes, acts, start):
        words = codes.astype(np.uint8).view("<i4")[..., 0], acts.astype(np.int8).view("<i4")[..., 0]
        sums, *_ = run(np.full((1, 16), start, np.int32), *words)
        return sums[0]

    return call


def exact(codes, acts, start):
    return start + np.einsum("srk,sk->r", codes.astype(np.int64), acts.astype(np.int64))


def test_each_lane_is_the_dot_product_of_its_four_bytes(multiply):
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (STEPS, 16, 4))
    acts = random.integers(-127, 128, (STEPS, 4))
    np.testing.assert_array_equal(multiply(codes, acts, 5), exact(codes, acts, 5))


def test_no_byte_is_taken_for_another(multiply):
    """One weight and one activation are not zero: every pair of places in turn."""
    for lane in range(16):
        for place in range(4):
            codes, acts = np.zeros((STEPS, 16, 4), int), np.zeros((STEPS, 4), int)
            codes[lane, lane, place] = 13
            acts[lane] = [-101, 55, 127, -3]
            np.testing.assert_array_equal(multiply(codes, acts, 0), exact(codes, acts, 0))


def test_extremes_neither_saturate_nor_wrap(multiply):
    for case, (code, act, start) in EXTREMES.items():
        codes, acts = np.full((STEPS, 16, 4), code), np.full((STEPS, 4), act)
        got = multiply(codes, acts, start)
        np.testing.assert_array_equal(got, exact(codes, acts, start), case)


@pytest.mark.parametrize(
    ("preset", "feature"),
    [
        ("cpu-x86-64-v2", None),
        ("cpu-x86-64-v3", "avx2"),
        ("cpu-x86-64-v4", "avx512bw"),
        ("cpu-sapphirerapids", "avx512_vnni"),
        ("cpu-aarch64", None),
        ("cpu-aarch64-dotprod", "asimddp"),
        ("cpu-aarch64-i8mm", "asimddp"),  # for one row; many have a kernel of their own
    ],
)
def test_a_target_gets_the_best_that_all_its_cpus_have(preset, feature):
    found = dot_for(find_target(preset))
    assert (found and found.feature) == feature


def test_only_what_a_target_requires_counts():
    """LLVM may be told of an instruction; that does not make the CPUs have it."""
    row = find_target("cpu-x86-64-v2")
    told = msgspec.structs.replace(row, mattr=("avx512vnni",), mcpu="sapphirerapids")
    assert dot_for(told) is None


def test_each_instruction_has_a_feature_of_its_own():
    assert len({d.feature for d in DOTS}) == len(DOTS)
