"""RMSNorm against float64."""

import numpy as np
import pytest

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import norm

EPS = np.finfo(np.float32).eps


def exact(x, gamma, eps):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gamma


def check(x, gamma, eps, y):
    # The sum of k squares loses at most k eps of itself, its square root half of that; the
    # four roundings after it are eps / 2 each.
    bound = (x.shape[-1] / 2 + 2) * EPS
    np.testing.assert_allclose(y, exact(x, gamma, eps), rtol=bound, atol=0)


@pytest.mark.parametrize("k", [1, 6, 24, 64, 1024])
def test_a_row_is_normalized_whatever_its_width(compile_kernel, unwritten, k):
    random = np.random.default_rng(k)
    x = random.standard_normal((1, 5, k)).astype(np.float32)
    gamma = random.standard_normal(k).astype(np.float32)
    run = compile_kernel(norm.rms_norm(k, 1e-6, None))
    for m in (1, 5):
        *_, y = run(x[:, :m].copy(), gamma, unwritten((1, m, k)))
        check(x[:, :m], gamma, 1e-6, y)


def test_every_level_agrees(compile_kernel, unwritten, level):
    random = np.random.default_rng(3)
    x = random.standard_normal((1, 1, 96)).astype(np.float32)
    gamma = random.standard_normal(96).astype(np.float32)
    *_, y = compile_kernel(norm.rms_norm(96, 1e-6, 1), level)(x, gamma, unwritten(x.shape))
    check(x, gamma, 1e-6, y)


@pytest.mark.parametrize("size", [0.0, 1e-18, 1e-3, 1e15])
def test_extreme_rows_stay_finite_and_right(compile_kernel, unwritten, size):
    x = np.full((1, 2, 64), size, np.float32)
    x[:, :, ::3] *= -1
    gamma = np.linspace(-2, 2, 64, dtype=np.float32)
    *_, y = compile_kernel(norm.rms_norm(64, 1e-6, None))(x, gamma, unwritten(x.shape))
    check(x, gamma, 1e-6, y)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("h_q", "h_kv", "d"), [(4, 4, 64), (4, 2, 80), (2, 1, 6)])
def test_heads_of_q_and_k_are_normalized_and_v_is_kept(
    compile_kernel, unwritten, dtype, h_q, h_kv, d
):
    a = Attention(0, h_q, h_kv, d, 1e-6, 1.0, (1.0,) * (d // 2))
    random = np.random.default_rng(d)
    gammas = [random.standard_normal(d).astype(np.float32) for _ in range(2)]
    for rows, m in ((1, 1), (None, 5)):
        qkv = random.standard_normal((1, m, (h_q + 2 * h_kv) * d)).astype(np.float32)
        run = compile_kernel(norm.qk_norm(a, dtype, rows))
        *_, y = run(qkv, *gammas, unwritten((m, h_q + 2 * h_kv, d), dtype))
        q, k, v = np.split(qkv.reshape(m, -1, d), [h_q, h_q + h_kv], axis=1)
        expected = [exact(q, gammas[0], 1e-6), exact(k, gammas[1], 1e-6), v]
        # `check`'s bound, and the rounding to float16, whose subnormals are 6e-8 apart.
        bound = (d / 2 + 2) * EPS + (2.0**-11 if dtype == "float16" else 0)
        np.testing.assert_allclose(y, np.concatenate(expected, axis=1), rtol=bound, atol=6e-8)
