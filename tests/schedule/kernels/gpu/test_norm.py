"""RMSNorm of rows, and of the heads of q and k, against float64."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu import norm
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    every_type,
    simulate,
    source,
)
from tests.schedule.kernels.gpu.paged_cache import attention

EPS = np.finfo(np.float32).eps
RMS = 1e-6


def exact(x, gamma):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + RMS) * gamma


@every_row
@pytest.mark.parametrize("k", [6, 96, 1024, 2560])
@pytest.mark.parametrize("rows", [1, None])
def test_a_row_is_normalized_whatever_its_width(row, k, rows):
    random = np.random.default_rng(k)
    func = norm.rms_norm(k, RMS, rows, device_of(row))
    for m in [1] if rows else [1, 2, 5]:
        x = random.standard_normal((1, m, k)).astype(np.float32)
        gamma = random.standard_normal(k).astype(np.float32)
        y = np.full_like(x, np.nan)
        simulate(func, row, x, gamma, y)
        # Half of the roundings of a sum of k squares, and four more.
        np.testing.assert_allclose(y, exact(x, gamma), rtol=(k / 2 + 2) * EPS, atol=0)


@every_row
@pytest.mark.parametrize("size", [0.0, 1e-18, 1e15])
def test_extreme_rows_stay_finite_and_right(row, size):
    x = np.full((1, 2, 64), size, np.float32)
    x[:, :, ::3] *= -1
    gamma = np.linspace(-2, 2, 64, dtype=np.float32)
    y = np.full_like(x, np.nan)
    simulate(norm.rms_norm(64, RMS, None, device_of(row)), row, x, gamma, y)
    np.testing.assert_allclose(y, exact(x, gamma), rtol=34 * EPS, atol=0)


@every_type
@pytest.mark.parametrize(("heads", "d"), [((4, 4), 64), ((4, 2), 80), ((8, 2), 128)])
def test_heads_of_q_and_k_are_normalized_and_v_is_kept(row, dtype, heads, d):
    a = attention(*heads, d)
    random = np.random.default_rng(d)
    gammas = [random.standard_normal(d).astype(np.float32) for _ in range(2)]
    func = norm.qk_norm(a, dtype, None, device_of(row))
    for m in (1, 2, 5):
        qkv = random.standard_normal((1, m, (a.h_q + 2 * a.h_kv) * d)).astype(np.float32)
        y = np.full((m, a.h_q + 2 * a.h_kv, d), np.nan, dtype)
        simulate(func, row, qkv, *gammas, y)
        q, k, v = np.split(qkv.reshape(m, -1, d), [a.h_q, a.h_q + a.h_kv], axis=1)
        expected = np.concatenate([exact(q, gammas[0]), exact(k, gammas[1]), v], axis=1)
        rounding = np.finfo(dtype).eps / 2 if dtype == "float16" else 0
        bound = (d / 2 + 2) * EPS + rounding
        np.testing.assert_allclose(y, expected, rtol=bound, atol=6e-8)  # float16's subnormals
        assert (y[:, a.h_q + a.h_kv :] == v.astype(dtype)).all()


def test_one_row_of_qk_norm_needs_no_symbol():
    func = norm.qk_norm(attention(4, 2, 64), "float32", 1, device_of("metal"))
    qkv, y = np.ones((1, 1, 512), np.float32), np.full((1, 8, 64), np.nan, np.float32)
    (launch,) = simulate(func, "metal", qkv, np.ones(64, np.float32), np.ones(64, np.float32), y)
    assert launch.grid == (8, 1, 1)
    np.testing.assert_allclose(y, 1, rtol=1e-6)


def test_a_grid_beyond_the_device_is_folded():
    m = 65535 // 8 + 1  # heads of one token more than Vulkan's grid takes
    a = attention(4, 2, 2)
    qkv = np.random.default_rng(0).standard_normal((1, m, 16)).astype(np.float32)
    y, ones = np.full((m, 8, 2), np.nan, np.float32), np.ones(2, np.float32)
    simulate(norm.qk_norm(a, "float32", None, device_of("vulkan")), "vulkan", qkv, ones, ones, y)
    np.testing.assert_allclose(y[:, :6], exact(qkv.reshape(m, 8, 2), ones)[:, :6], rtol=1e-6)


@pytest.mark.parametrize("row", PRINTED)
def test_the_source_loads_vectors(row):
    wide = {"cuda-sm80": "float4", "metal": "float4", "webgpu": "vec4<f32>"}[row]
    dtype = "float16" if device_of(row).f16 else "float32"
    for func in (
        norm.rms_norm(1024, RMS, None, device_of(row)),
        norm.qk_norm(attention(16, 8, 128), dtype, None, device_of(row)),
    ):
        assert wide in source(row, func)
