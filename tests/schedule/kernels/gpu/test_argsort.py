"""Sorted on the device as numpy sorts: descending, stable, whatever the bits."""

import functools

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.argsort import TILE, argsort, tiles_of
from mlc_compile.schedule.limits import launches_of
from tests.schedule.kernels.gpu.emission import PRINTED, device_of, simulate, source

QWEN = 151936  # tokens


@functools.cache
def kernel(vocab):
    return argsort(vocab, device_of("webgpu"))


def sort(x):
    """(sorted, order) of x[v], after eight launches; workspaces hold garbage before."""
    vocab = x.size
    values, order = np.full((1, vocab), np.nan, np.float32), np.full((1, vocab), -1, np.int32)
    side = [np.full(vocab, 2**31 + 7, np.uint32), np.full(vocab, -5, np.int32)]
    work = [*side, *(a.copy() for a in side), np.full((tiles_of(vocab), 256), -3, np.int32)]
    launches = simulate(kernel(vocab), "webgpu", x[None], values, order, *work)
    assert len(launches) == 8
    return values[0], order[0]


def check(x):
    values, order = sort(x)
    expected = np.argsort(-x.astype(np.float64), kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(values, x[expected])


@pytest.mark.parametrize("vocab", [1, TILE + 1, 2 * TILE + 300])
def test_any_size_is_sorted(vocab):
    check(np.random.default_rng(vocab).standard_normal(vocab).astype(np.float32))


def test_probabilities_with_many_zeros_keep_the_order_of_equals():
    random = np.random.default_rng(0)
    x = random.dirichlet(np.full(900, 0.05)).astype(np.float32)
    x[random.integers(0, 900, 300)] = 0
    x[500:520] = x[3]
    check(x)


def test_numbers_of_all_magnitudes_and_signs_are_in_order():
    """Every exponent, so that every digit of a key decides somewhere."""
    x = np.ldexp(1.0, np.arange(-126, 127)).astype(np.float32)
    both = np.concatenate([x, -x, [np.inf, -np.inf, 0.0]]).astype(np.float32)
    check(np.random.default_rng(1).permutation(both))


def test_zeros_of_either_sign_are_equal():
    _, order = sort(np.array([-1, -0.0, 0.0, 1], np.float32))
    assert order.tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert source(row, argsort(QWEN, device_of(row)))


def test_the_whole_vocabulary_of_qwen_stays_within_the_default_limits():
    device = device_of("webgpu")
    for taken in launches_of(argsort(QWEN, device)):
        assert taken.blocks <= 149
        assert taken.shared_bytes <= device.shared_bytes
        assert len(taken.arguments) <= device.buffers


@pytest.mark.slow
def test_the_whole_vocabulary_of_qwen_is_sorted():
    check(np.random.default_rng(2).dirichlet(np.full(QWEN, 0.3)).astype(np.float32))
