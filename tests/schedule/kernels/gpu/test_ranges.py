"""Weights in several buffers, where a kernel sees little of one: every row is read as stored."""

import numpy as np
import pytest

from mlc_compile.layout import LAYOUTS
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu import embedding
from mlc_compile.schedule.kernels.gpu.gemm import BATCH, gemm
from mlc_compile.schedule.kernels.gpu.gemv import gemv
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from tests.schedule.kernels.gpu.emission import PRINTED, device_of, simulate, source
from tests.schedule.kernels.gpu.products import Case

N, K = 37, 96  # of no range's size a multiple
every_scheme = pytest.mark.parametrize("scheme", ["q4f32_1", "q0f32"])
every_count = pytest.mark.parametrize("count", [2, 3])


def cut(scheme, count):
    """A matrix, its parts with the first in so many ranges, and the codec that reads them."""
    case = Case(scheme, N, K)
    parts = case.parts
    most = -(-N // count) * next(iter(parts.values()))[0].nbytes
    return case, LAYOUTS[f"plain{count}"].pack(parts), codec_of(scheme, N, K, most)


@every_scheme
@every_count
@pytest.mark.parametrize("m", [1, 3, BATCH + 2])
def test_products_are_those_of_the_whole(scheme, count, m):
    case, parts, codec = cut(scheme, count)
    device = device_of("webgpu")
    x, y = case.normal(1, m, K), np.full((1, m, N), np.nan, np.float32)
    func = gemv(codec, N, device) if m == 1 else gemm(codec, N, device)
    simulate(func, "webgpu", x, *parts.values(), y)
    case.product(x).check(y)


@every_scheme
@every_count
def test_rows_are_looked_up_in_their_range(scheme, count):
    case, parts, codec = cut(scheme, count)
    stored = SCHEMES[scheme].decode(case.parts)
    func = embedding.take(codec, device_of("webgpu"))
    ids = np.arange(N, dtype=np.int32)[::-1].copy()  # the ends of all ranges among them
    y = np.full((N, K), np.nan, np.float32)
    simulate(func, "webgpu", ids, *parts.values(), y)
    np.testing.assert_allclose(y, stored[ids], rtol=1e-6, atol=0)  # one product rounds


@pytest.mark.parametrize("row", [row for row in PRINTED if row.startswith("webgpu")])
def test_the_code_generator_prints_them(row):
    device = device_of(row)
    codec = codec_of("q4f32_1", 1000, 256, 1000 * 64)
    for func in (gemv(codec, 1000, device), embedding.take(codec, device)):
        assert "q_weight_1" in source(row, func)
