"""Softmax at a temperature on every kind of device against float64."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.softmax import softmax, workspace_shape
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    simulate,
    source,
)
from tests.schedule.kernels.gpu.place import ulps_of_exp

EPS = np.finfo(np.float32).eps


def run_softmax(row, logits, temperature):
    b, _, vocab = logits.shape
    y = np.full_like(logits, np.nan)
    work = np.full((b, *workspace_shape(vocab)), np.nan, np.float32)
    simulate(softmax(vocab, device_of(row)), row, logits, temperature, y, work)
    return y


@every_row
@pytest.mark.parametrize("vocab", [1, 300, 17000])
def test_rows_become_probabilities(row, vocab):
    random = np.random.default_rng(vocab)
    logits = (5 * random.standard_normal((2, 1, vocab))).astype(np.float32)
    temperature = np.array([0.7, 1.5], np.float32)
    y = run_softmax(row, logits, temperature)
    z = logits.astype(np.float64) / temperature[:, None, None]
    z -= z.max(-1, keepdims=True)
    exact = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    # A z of -60 is off by 60 eps; sum and quotient by a few.
    assert (np.abs(y - exact) <= (80 + ulps_of_exp(z)) * EPS * exact + 1e-12).all()


def test_temperature_zero_puts_all_mass_on_the_largest():
    logits = np.random.default_rng(0).standard_normal((1, 1, 500)).astype(np.float32)
    y = run_softmax("webgpu", logits, np.zeros(1, np.float32))
    assert y[0, 0, logits.argmax()] == 1
    assert y.sum() == 1


def test_a_masked_token_has_no_probability():
    logits = np.zeros((1, 1, 10), np.float32)
    logits[..., 3] = -np.inf
    y = run_softmax("webgpu", logits, np.ones(1, np.float32))
    assert y[0, 0, 3] == 0
    np.testing.assert_allclose(y.sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert "exp" in source(row, softmax(151936, device_of(row)))
