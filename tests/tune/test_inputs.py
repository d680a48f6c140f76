"""What kernels are called with is defined for every kernel, and as large as it says."""

import numpy as np
import pytest

from mlc_compile.artifact import SCALE_ROWS
from mlc_compile.tune.inputs import BLOCK, Argument, Situation, fill


def filled(values, dtype, shape=(3, 64), role="input"):
    return fill(Argument(shape, dtype, values, role), 7, np.random.default_rng(0))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_packed_words_hold_finite_scales(dtype):
    words = filled("packed", "int32")
    scales = words.view(dtype)
    assert np.isfinite(scales.astype("float32")).all()
    assert (scales < 1).all()


def test_codes_count_as_int8_without_its_least():
    codes = filled("codes", "int32").view("int8")
    assert codes.min() >= -127
    assert codes.size == 3 * 64 * 4


def test_pairs_are_two_normal_bfloat16_in_a_word():
    words = filled("pairs", "int32").view(np.uint32)
    both = np.stack([words << 16, words & np.uint32(0xFFFF0000)]).view(np.float32)
    assert (both.std(axis=(1, 2)) > 0.8).all()
    assert (both.std(axis=(1, 2)) < 1.2).all()
    assert abs(np.corrcoef(*both.reshape(2, -1))[0, 1]) < 0.2


def test_pages_and_lengths_are_numbers_of_their_own():
    assert filled("pages", "int32", (4,)).tolist() == [0, 1, 2, 3]
    assert filled("length", "int32", (1,)).tolist() == [7]


@pytest.mark.parametrize("values", ["keys", "values"])
def test_pages_of_floats_are_normal(values):
    pages = filled(values, "float16", (2, 3, 2, 8, 16), "state")
    assert pages.dtype == np.float16
    assert 0.8 < pages.astype(float).std() < 1.2


def test_pages_of_codes_have_scales_that_are_as_large_as_a_model_s():
    keys = filled("keys", "int8", (2, 3, 2, 32 + SCALE_ROWS, 16), "state")
    values = filled("values", "int8", (2, 3, 2, 16, 32), "state")
    scales = keys[..., -SCALE_ROWS:, :].copy().view(np.float32)
    assert scales.size == 2 * values.size // 32  # of each key and each value
    assert scales.min() >= np.float32(0.001)
    assert scales.max() <= np.float32(0.02)
    for codes in (keys[..., :-SCALE_ROWS, :], values):
        assert (codes.min(), codes.max()) == (-127, 127)


def test_results_begin_as_what_no_kernel_writes():
    assert np.isnan(filled("normal", "float32", role="result")).all()
    words = filled("pairs", "int32", role="result").view(np.uint16)
    assert np.isnan((words.astype(np.uint32) << 16).view(np.float32)).all()


def test_large_arrays_repeat_what_was_drawn():
    large = filled("normal", "float16", (2, BLOCK))
    assert large.dtype == np.float16
    assert (large[0] == large[1]).all()


def test_layers_are_those_of_the_state():
    state = Argument((28, 4), "float16", "normal", "state")
    weights = Argument((10,), "int32", "packed", "weights")
    assert Situation((state, weights), 0).layers == 28
    assert Situation((weights,), 0).layers == 1
    assert Situation((weights, weights), 0).nbytes("weights") == 80
