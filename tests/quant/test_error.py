"""The error that convert notes of each tensor is that of the values it stored."""

import numpy as np
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.quant.error import combine, measure


def blocks(scheme, w, rows):
    for start in range(0, len(w), rows):
        part = w[start : start + rows]
        yield measure("w", scheme, part, scheme.encode(part))


@pytest.mark.parametrize("name", SCHEMES)
def test_blocks_add_up_to_the_error_of_the_whole(name):
    scheme = SCHEMES[name]
    w = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    (told,) = combine(blocks(scheme, w, 7)).tensors
    error = (scheme.decode(scheme.encode(w)) - w).astype(np.float64)
    # Numbers are kept to six digits.
    assert told.rms == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    relative = np.sqrt(np.sum(error**2) / np.sum(w.astype(np.float64) ** 2))
    assert told.relative == pytest.approx(relative, rel=1e-5)
    assert told.largest == pytest.approx(np.abs(error).max(), rel=1e-5)
    assert (told.name, told.scheme) == ("w", name)


def test_weights_that_are_stored_as_they_are_have_no_error():
    (told,) = combine(blocks(SCHEMES["q0f32"], np.ones((2, 32), np.float32), 1)).tensors
    assert (told.rms, told.relative, told.largest) == (0, 0, 0)


def test_zeros_and_the_largest_floats_have_an_error():
    w = np.zeros((2, 32), np.float32)
    (told,) = combine(blocks(SCHEMES["q4f32_1"], w, 1)).tensors
    assert told.relative == 0
    w[0, 0] = np.finfo(np.float32).max / 2  # its square is beyond float32
    (told,) = combine(blocks(SCHEMES["q4f32_1"], w, 1)).tensors
    assert np.isfinite(told.rms)
