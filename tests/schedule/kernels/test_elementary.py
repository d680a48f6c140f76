"""Elementary functions against float64 over their range."""

import numpy as np
import pytest
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import elementary
from mlc_compile.schedule.kernels import vector as v


def exp_kernel(lanes, function=elementary.exp):
    m = v.size("m")
    with v.kernel() as builder:
        x = v.argument("x", (m, lanes))
        y = v.argument("y", (m, lanes))
        with T.serial(0, m) as i:
            v.store(function(v.load(x, i, 0, lanes=lanes), lanes), y, i, 0, lanes=lanes)
    return builder.get()


def run_exp(compile_kernel, unwritten, x, level="cpu", function=elementary.exp, lanes=16):
    rows = np.resize(x.astype(np.float32), (-(-x.size // lanes), lanes))
    _, y = compile_kernel(exp_kernel(lanes, function), level)(rows, unwritten(rows.shape))
    return rows.ravel()[: x.size], y.ravel()[: x.size]


def test_exp_is_within_2_ulp_over_its_range(compile_kernel, unwritten, level):
    x, y = run_exp(compile_kernel, unwritten, np.linspace(-87, 87, 1_000_003), level)
    exact = np.exp(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(y - exact) / ulp).max() <= 2


def test_exp_of_zero_is_one(compile_kernel, unwritten):
    _, y = run_exp(compile_kernel, unwritten, np.zeros(16))
    np.testing.assert_array_equal(y, 1)


@pytest.mark.parametrize(("x", "bound"), [(-1e38, -87), (-88, -87), (88, 87), (3e38, 87)])
def test_exp_beyond_its_range_is_that_of_the_bound(compile_kernel, unwritten, x, bound):
    _, got = run_exp(compile_kernel, unwritten, np.full(16, x))
    _, expected = run_exp(compile_kernel, unwritten, np.full(16, float(bound)))
    np.testing.assert_array_equal(got, expected)
    assert np.isfinite(got).all()


def test_exp2_is_within_2_ulp_over_its_range(compile_kernel, unwritten, level):
    x = np.linspace(-125, 127, 1_000_003)
    x, y = run_exp(compile_kernel, unwritten, x, level, elementary.exp2)
    exact = np.exp2(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(y - exact) / ulp).max() <= 2


def test_exp2_of_fewer_powers_is_within_a_32nd_of_what_rounding_to_bfloat16_is(
    compile_kernel, unwritten, level
):
    def short(x, lanes):
        return elementary.exp2(x, lanes, elementary.EXP2_BF16)

    x = np.linspace(-125, 127, 1_000_003)
    x, y = run_exp(compile_kernel, unwritten, x, level, short)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(y - exact) <= 2.0**-13 * exact).all()
    _, least = run_exp(compile_kernel, unwritten, np.array([-126, -3.4e38]), level, short)
    assert (np.abs(least - 2.0**-125) <= 2.0**-138).all()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_exp2_of_whole_numbers_is_exact(compile_kernel, unwritten, lanes):
    whole = np.arange(-125, 127)
    x, y = run_exp(compile_kernel, unwritten, whole, function=elementary.exp2, lanes=lanes)
    np.testing.assert_array_equal(y, np.exp2(x))


def test_exp2_far_below_zero_is_nothing_to_speak_of(compile_kernel, unwritten):
    x = np.array([-126, -1e4, -3.4e38, -np.inf])
    _, y = run_exp(compile_kernel, unwritten, x, function=elementary.exp2)
    np.testing.assert_array_equal(y, np.float32(2.0**-125))


def test_a_reciprocal_is_within_a_512th_of_what_rounding_to_bfloat16_is(
    compile_kernel, unwritten, level
):
    x = np.concatenate([np.linspace(1, 2, 100_003), np.exp2(np.linspace(0, 123.9, 100_000))])
    x, y = run_exp(compile_kernel, unwritten, x, level, elementary.reciprocal)
    assert (np.abs(x.astype(np.float64) * y - 1) <= 2.0**-17).all()


def test_silu_that_is_rounded_to_bfloat16_is_within_a_sixteenth_of_that(
    compile_kernel, unwritten, level
):
    x = np.concatenate([np.linspace(-80, 80, 200_003), [0.0, 1e-30, 3e38]])
    x, y = run_exp(compile_kernel, unwritten, x, level, elementary.silu_bf16)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert (np.abs(y - exact) <= 2.0**-12 * np.abs(exact)).all()


def test_silu_that_is_rounded_of_what_is_far_out_or_not_finite(compile_kernel, unwritten):
    x = np.array([-1e4, -1e30, np.inf, np.nan])
    _, y = run_exp(compile_kernel, unwritten, x, function=elementary.silu_bf16)
    assert np.abs(y[0]) < 1e-30  # beside up, as good as the zero that it is
    assert np.abs(y[1]) < 1e-5
    assert y[2] == np.inf
    assert np.isnan(y[3])
