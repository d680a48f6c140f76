"""Activations to int8 by groups, against float64.

The kernel computes x and its group's maximum in float32, each within some eps of the true
value (CLOSE), so x * 127 / max is off by at most 127 times that, and a code may differ from
the nearest integer only where it all but lies half-way between two.
"""

import numpy as np
import pytest

from mlc_compile import ops
from mlc_compile.layout import GROUP, WIDE
from mlc_compile.schedule.kernels import quantize
from mlc_compile.schedule.kernels.dot import ZERO_SIGNED, ZERO_UNSIGNED

EPS = np.finfo(np.float32).eps
NORM_EPS = 1e-6
TINIEST = 1e-30  # groups below it are zeros: one factor serves them and a group of zeros

# Roundings, in eps, on the way to x * 127 / max; the norm's own factor is in both, so it cancels.
CLOSE = {"plain": 2, "rms_norm": 6, "swiglu": 32}

every_source = pytest.mark.parametrize("kind", ops.SOURCES)


def inputs_of(kind, m, k, random):
    x = random.standard_normal((1, m, 2 * k if kind == "swiglu" else k)) * 3
    gamma = [random.standard_normal(k).astype(np.float32)] if kind == "rms_norm" else []
    return [x.astype(np.float32), *gamma]


def exact(kind, inputs):
    """float64 [m, k]: what is to be quantized."""
    x, *gamma = (a.astype(np.float64) for a in inputs)
    x = x[0]
    if kind == "rms_norm":
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPS) * gamma[0]
    if kind == "swiglu":
        gate, up = np.split(x, 2, axis=-1)
        return gate / (1 + np.exp(-gate)) * up
    return x


@pytest.fixture
def quantized(compile_kernel):
    """`quantized(kind, inputs)`: int8 codes [m, k], scales and offsets [m, k / group]."""
    kernels = {}

    def run(kind, inputs, level="cpu", grouping=ops.NARROW):
        m, k = inputs[0].shape[1], inputs[0].shape[2] // (2 if kind == "swiglu" else 1)
        if (kind, k, grouping) not in kernels:
            func = quantize.quantize(quantize.FEEDS[kind](k, NORM_EPS), grouping)
            kernels[kind, k, grouping] = compile_kernel(func, level)
        groups, kernel = (1, m, k // grouping.group), kernels[kind, k, grouping]
        outs = np.full((1, m, k // 4), -1, np.int32), np.full(groups, np.nan, np.float32)
        *_, codes, scales, offsets = kernel(*inputs, *outs, np.full(groups, 99, np.int32))
        return codes.view(np.int8)[0].astype(np.int64), scales[0], offsets[0]

    return run


def check(kind, inputs, answer, grouping=ops.NARROW):
    codes, scales, offsets = answer
    x = exact(kind, inputs)
    m, k = x.shape
    groups = x.reshape(m, -1, grouping.group)
    top = np.abs(groups).max(axis=-1)
    places = groups * (127 / np.where(top > 0, top, 1))[..., None]
    distance = np.abs(codes.reshape(groups.shape) - places)
    assert distance.max() <= 0.5 + 127 * CLOSE[kind] * EPS
    assert np.abs(codes).max() <= 127
    rounding = k if kind == "rms_norm" else 2 * CLOSE[kind]  # the norm's sum has k terms
    assert (np.abs(scales - top / 127) <= rounding * EPS * top / 127).all()
    sums = codes.reshape(groups.shape).sum(axis=-1)
    np.testing.assert_array_equal(offsets, -grouping.zero * sums)


@every_source
def test_codes_are_the_nearest_and_offsets_exact_on_every_level(quantized, kind, level):
    inputs = inputs_of(kind, 5, 96, np.random.default_rng(3))
    check(kind, inputs, quantized(kind, inputs, level))


@every_source
@pytest.mark.parametrize("k", [32, 160, 1024])
def test_any_number_of_rows_and_groups(quantized, kind, k):
    for m in (1, 2, 7, 33):
        inputs = inputs_of(kind, m, k, np.random.default_rng([m, k]))
        check(kind, inputs, quantized(kind, inputs))


@every_source
@pytest.mark.parametrize("zero", [ZERO_SIGNED, ZERO_UNSIGNED])
def test_wide_groups_for_weights_of_another_zero(quantized, kind, zero):
    grouping = ops.Grouping(group=WIDE, zero=zero)
    inputs = inputs_of(kind, 5, 384, np.random.default_rng(4))
    check(kind, inputs, quantized(kind, inputs, grouping=grouping), grouping)


@every_source
def test_groups_of_zeros_are_zeros(quantized, kind):
    inputs = inputs_of(kind, 3, 96, np.random.default_rng(5))
    inputs[0][0, 1] = 0  # a row
    inputs[0][0, 2, 32:64] = 0  # a group; SwiGLU's gate there
    codes, scales, offsets = quantized(kind, inputs)
    for group in ((1, 0), (1, 2), (2, 1)):
        assert scales[group] == 0
        assert offsets[group] == 0
        assert (codes.reshape(3, 3, GROUP)[group] == 0).all()
    check(kind, inputs, (codes, scales, offsets))


def test_an_outlier_hides_its_own_group_alone(quantized):
    x = np.ones((1, 1, 96), np.float32)
    x[0, 0, 40] = -3e38
    codes, scales, offsets = quantized("plain", [x])
    groups = codes.reshape(3, GROUP)
    assert (groups[[0, 2]] == 127).all()
    assert groups[1, 8] == -127
    assert np.count_nonzero(groups[1]) == 1
    assert offsets[0, 1] == 7 * 127
    assert scales[0, 1] == pytest.approx(3e38 / 127, rel=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_magnitude_is_127_whatever_its_size(quantized, sign):
    for size in (TINIEST, 1.2e-20, 0.1, 1 / 3, 1.0, 127.0, 3.3e10, 3.4e38):
        codes, _, _ = quantized("plain", [np.full((1, 1, 32), sign * size, np.float32)])
        assert (codes == sign * 127).all(), size


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-38, 1e-33])
def test_what_is_next_to_zero_is_zero_or_close(quantized, size):
    x = np.random.default_rng(6).uniform(-size, size, (1, 2, 64)).astype(np.float32)
    codes, scales, offsets = quantized("plain", [x])
    values = codes.reshape(2, 2, GROUP) * scales[..., None].astype(np.float64)
    assert np.abs(values - x.reshape(2, 2, GROUP)).max() <= TINIEST
    np.testing.assert_array_equal(offsets, -7 * codes.reshape(2, 2, GROUP).sum(axis=-1))


def test_ties_go_to_the_even_code(quantized):
    """The factor is 1, and half-way points are float32 numbers."""
    x = np.concatenate([[127.0], np.arange(31) - 15.5]).astype(np.float32)
    codes, _, _ = quantized("plain", [x[None, None]])
    np.testing.assert_array_equal(codes[0], np.rint(x).astype(int))


@every_source
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_lost(quantized, kind, bad):
    """Its group's scale tells, so what is multiplied by it is not finite either."""
    for place in (0, 15, 16, 31):
        inputs = inputs_of(kind, 2, 32, np.random.default_rng(7))
        inputs[0][0, 0, place] = bad
        with np.errstate(invalid="ignore"):
            lost = np.isfinite(exact(kind, inputs)[0]).all()
        _, scales, _ = quantized(kind, inputs)
        assert np.isfinite(scales[0, 0]) == lost
        assert np.isfinite(scales[1, 0])
