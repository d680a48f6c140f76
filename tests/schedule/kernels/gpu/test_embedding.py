"""Embedding lookup on every kind of device gives the stored values."""

import numpy as np
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu import embedding
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from tests.schedule.kernels.gpu.emission import PRINTED, ROWS, device_of, simulate, source, types_of

VOCAB = 37

SCALES = {"q4f16_1": "float16", "q4f32_1": "float32"}  # scheme -> type of its scales


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", [64, 96])
def test_rows_are_those_that_were_stored(row, scheme, k):
    random = np.random.default_rng(k)
    w = random.standard_normal((VOCAB, k)).astype(np.float32)
    w[5] = 0
    parts = {s: np.ascontiguousarray(p) for s, p in SCHEMES[scheme].encode(w).items()}
    stored = SCHEMES[scheme].decode(parts)
    func = embedding.take(codec_of(scheme, VOCAB, k), device_of(row))
    for ids in ([0], [VOCAB - 1, 5], [5, 0, 5, 36, 11]):
        y = np.full((len(ids), k), np.nan, np.float32)
        simulate(func, row, np.array(ids, np.int32), *parts.values(), y)
        np.testing.assert_allclose(y, stored[ids], rtol=1e-6, atol=0)  # one product rounds


@pytest.mark.parametrize(
    ("row", "scheme"),
    [
        (row, scheme)
        for row in PRINTED
        for scheme, dtype in SCALES.items()
        if dtype in types_of(row)
    ],
)
def test_every_code_generator_prints_it(row, scheme):
    assert source(row, embedding.take(codec_of(scheme, 1000, 128), device_of(row)))
