"""Biases, penalties and masks change the logits they are about, and no others."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.logit_edits import add_bias, forbid, penalize
from tests.schedule.kernels.gpu.emission import PRINTED, device_of, simulate, source

VOCAB = 300
KERNELS = {"bias": add_bias, "penalty": penalize, "mask": forbid}


def ints(*values):
    return np.array(values, np.int32)


def run(kernel, *arguments):
    simulate(kernel(VOCAB, device_of("webgpu")), "webgpu", *arguments)


@pytest.fixture
def logits():
    return np.random.default_rng(0).standard_normal((2, VOCAB)).astype(np.float32)


def test_a_bias_is_added_to_its_token(logits):
    rows, tokens = ints(1, 0, 1), ints(0, VOCAB - 1, 7)
    bias = np.array([2.5, -100, 1], np.float32)
    expected = logits.copy()
    expected[rows, tokens] += bias
    run(add_bias, logits, rows, tokens, bias)
    np.testing.assert_array_equal(logits, expected)


def test_more_entries_than_a_block_has_threads(logits):
    tokens = np.random.default_rng(1).permutation(VOCAB).astype(np.int32)
    bias = np.arange(VOCAB, dtype=np.float32)
    expected = logits.copy()
    expected[0, tokens] += bias
    run(add_bias, logits, np.zeros(VOCAB, np.int32), tokens, bias)
    np.testing.assert_array_equal(logits, expected)


def test_penalties_are_those_of_the_sequence_of_an_entry(logits):
    """Rows 1 and 0 in this order are the sequences; all factors are exact in float32."""
    sequences, penalties = ints(1, 0), np.array([[0.5, 0.25, 2], [0, 0, 1.5]], np.float32)
    positions, tokens, counts = ints(0, 0, 1, 1), ints(3, 299, 3, 8), ints(1, 4, 9, 2)
    expected = logits.copy()
    for position, token, count in zip(positions, tokens, counts, strict=True):
        presence, frequency, repetition = penalties[position]
        x = expected[sequences[position], token] - presence - count * frequency
        x = x / repetition if x > 0 else x * repetition
        expected[sequences[position], token] = x
    run(penalize, logits, sequences, positions, tokens, counts, penalties)
    np.testing.assert_allclose(logits, expected, rtol=1e-6)  # a quotient may be off by an ulp


def test_tokens_whose_bit_is_not_set_are_forbidden(logits):
    allowed = np.random.default_rng(2).random((2, VOCAB)) < 0.5
    padded = np.pad(allowed, ((0, 0), (0, -VOCAB % 32)))
    mask = np.packbits(padded, axis=1, bitorder="little").view("<i4")
    before = logits.copy()
    run(forbid, logits, ints(1), mask)
    np.testing.assert_array_equal(logits[0], before[0])  # no sequence asked for it
    lowest = np.float32(g.LOWEST)
    np.testing.assert_array_equal(logits[1], np.where(allowed[1], before[1], lowest))


@pytest.mark.parametrize("row", PRINTED)
@pytest.mark.parametrize("name", KERNELS)
def test_every_code_generator_prints_it(row, name):
    assert source(row, KERNELS[name](151936, device_of(row)))
