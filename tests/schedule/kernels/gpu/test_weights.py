"""The codecs: what `gemv` and `gemm` read of a weight is the stored value itself."""

import numpy as np
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu.gemm import BATCH, gemm
from mlc_compile.schedule.kernels.gpu.gemv import gemv
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from tests.schedule.kernels.gpu.emission import device_of
from tests.schedule.kernels.gpu.products import Case

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@every_scheme
def test_a_unit_vector_picks_a_column_exactly(scheme):
    """Every element of a group, so every code's place in a word; sums of zeros are exact."""
    case = Case(scheme, 6, 64)
    x, device = np.eye(64, dtype=np.float32), device_of("webgpu")
    func = gemm(case.codec, case.n, device)
    pieces = case.run(func, x[None])
    np.testing.assert_array_equal(pieces[0], case.w.T)
    for some in (x[:BATCH], x[32 : 32 + BATCH]):
        np.testing.assert_array_equal(case.run(func, some[None])[0], some @ case.w.T)


def test_gemv_is_exact_where_nothing_is_summed():
    case = Case("q4f16_1", 9, 32)
    func = gemv(case.codec, case.n, device_of("vulkan"))
    for kk in range(32):
        x = np.zeros((1, 1, 32), np.float32)
        x[..., kk] = -3.0
        np.testing.assert_array_equal(case.run(func, x)[0, 0], -3 * case.w[:, kk])


@every_scheme
def test_parts_are_declared_as_the_scheme_stores_them(scheme):
    func = gemv(codec_of(scheme, 40, 96), 40, device_of("metal"))
    _x, *parts, _y = func.params
    declared = [(tuple(int(e) for e in p.ty.shape), str(p.ty.dtype)) for p in parts]
    assert declared == list(SCHEMES[scheme].parts(40, 96).values())


@pytest.mark.parametrize(("k", "span"), [(64, 8), (36, 4), (70, 2), (65, 1)])
def test_units_of_dense_rows_are_aligned(k, span):
    """A load of `span` elements must begin at a multiple of its size in every row."""
    assert codec_of("q0f16", 3, k).span == span
    assert codec_of("q0f32", 3, k).span == min(span, 4)
