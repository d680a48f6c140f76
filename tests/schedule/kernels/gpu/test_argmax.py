"""The largest logit on every kind of device; of equal ones the first."""

import functools

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.argmax import argmax, workspace_shape
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    simulate,
    source,
)


@functools.cache
def kernel(vocab, row):
    return argmax(vocab, device_of(row))


def largest(row, logits):
    token = np.full(1, -1, np.int32)
    work = np.full(workspace_shape(logits.size), np.nan, np.float32)
    assert len(simulate(kernel(logits.size, row), row, logits[None], token, work)) == 2
    return int(token[0])


@every_row
@pytest.mark.parametrize("vocab", [1, 300, 70000])
def test_the_largest_is_found_wherever_it_is(row, vocab):
    logits = np.random.default_rng(vocab).standard_normal(vocab).astype(np.float32)
    for place in {0, vocab // 3, vocab - 1}:
        logits[place] = 10 + place
        assert largest(row, logits) == place
        logits[place] = 0


@every_row
@pytest.mark.parametrize("places", [(5, 6), (299, 0), (3, 259), (100, 101, 40)])
def test_of_equal_ones_the_first(row, places):
    logits = np.full(300, -2, np.float32)
    logits[list(places)] = 1.5
    assert largest(row, logits) == min(places)


def test_a_row_of_equal_or_masked_logits_gives_its_first():
    assert largest("webgpu", np.zeros(300, np.float32)) == 0
    logits = np.full(300, -np.inf, np.float32)
    logits[17] = -1e9
    assert largest("webgpu", logits) == 17


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert source(row, argmax(151936, device_of(row)))
