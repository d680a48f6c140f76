"""The flat cache's kernels, append and attend, against float64 on what the pages hold."""

from dataclasses import dataclass

import numpy as np
import pytest

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import attention
from mlc_compile.target import find_target

EPS = np.finfo(np.float32).eps
PAGE = 64
LAYERS = 3
LAYER = 1  # the one the kernels are asked for; the others must not change


@dataclass(frozen=True)
class Shape:
    """Heads, head size and the cache's type and page."""

    h_q: int = 4
    h_kv: int = 2
    d: int = 32
    dtype: str = "float32"
    page: int = PAGE

    @property
    def op(self) -> Attention:
        inv_freq = tuple(float(f) for f in 1e4 ** -(np.arange(self.d // 2) / (self.d // 2)))
        return Attention(0, self.h_q, self.h_kv, self.d, 1e-6, 1.0, inv_freq)

    @property
    def kv(self) -> FlatKV:
        return FlatKV(
            layers=LAYERS, kv_heads=self.h_kv, head_dim=self.d, page=self.page, dtype=self.dtype
        )


class Cache:
    """Pages under a permuted block table, every slot holding something finite."""

    def __init__(self, shape: Shape, tokens: int, seed: int = 0) -> None:
        self.shape = shape
        random = np.random.default_rng(seed)
        pages = -(-tokens // shape.page) + 2  # two that no token of ours is in
        self.k = random.standard_normal((LAYERS, pages, shape.h_kv, shape.d, shape.page))
        self.v = random.standard_normal((LAYERS, pages, shape.h_kv, shape.page, shape.d))
        self.k, self.v = self.k.astype(shape.dtype), self.v.astype(shape.dtype)
        self.table = random.permutation(pages).astype(np.int32)

    def arrays(self, length: int) -> tuple[np.ndarray, ...]:
        return self.k, self.v, self.table, np.array([length], np.int32)

    def keys(self, n: int) -> np.ndarray:
        """float64 [n, h_kv, d] in the order of tokens."""
        pages = self.k[LAYER, self.table].transpose(0, 3, 1, 2)  # [page, slot, h, d]
        return pages.reshape(-1, self.shape.h_kv, self.shape.d)[:n].astype(np.float64)

    def values(self, n: int) -> np.ndarray:
        pages = self.v[LAYER, self.table].transpose(0, 2, 1, 3)
        return pages.reshape(-1, self.shape.h_kv, self.shape.d)[:n].astype(np.float64)


def exact_attention(q, cache, length):
    """o[m, h_q, d] and how far float32 may be from it, same shape.

    A score is off by at most d eps sum|q k| / sqrt(d) =: e, so weights by a factor exp(2 e),
    and exp, the sums over n tokens and the running rescaling add a few eps each.
    """
    m, h_q, d = q.shape
    n = length + m
    per_key = h_q // cache.shape.h_kv
    k, v = (np.repeat(a, per_key, axis=1) for a in (cache.keys(n), cache.values(n)))
    q = q.astype(np.float64)
    scores = np.einsum("mhd,nhd->hmn", q, k) / np.sqrt(d)
    doubt = (d + 4) * EPS * np.einsum("mhd,nhd->hmn", np.abs(q), np.abs(k)) / np.sqrt(d)
    hidden = np.arange(n)[None] > np.arange(length, n)[:, None]
    scores[:, hidden], doubt[:, hidden] = -np.inf, 0
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    share = np.expm1(2 * doubt.max(axis=-1)) + (n + 40) * EPS  # [h, m]
    largest = np.einsum("hmn,nhd->mhd", weights, np.abs(v))
    return np.einsum("hmn,nhd->mhd", weights, v), share.T[..., None] * largest + 1e-30


def attend(compile_kernel, unwritten, shape, rows=None, level="cpu"):
    func = attention.attend(shape.op, shape.kv, find_target(level), rows)
    kernel = compile_kernel(func, level)

    def run(q, cache, length):
        o = unwritten((1, q.shape[0], shape.h_q * shape.d))
        *_, o = kernel(q[None], *cache.arrays(length), LAYER, o)
        return o.reshape(q.shape)

    return run


def check(run, shape, length, m, seed=0, scale=1.0):
    cache = Cache(shape, length + m, seed)
    q = np.random.default_rng(seed).standard_normal((m, shape.h_q, shape.d)) * scale
    q = q.astype(np.float32)
    exact, bound = exact_attention(q, cache, length)
    assert (np.abs(run(q, cache, length) - exact) <= bound).all()


@pytest.mark.parametrize(
    ("h_q", "h_kv", "dtype"),
    [
        (1, 1, "float32"),
        (2, 1, "float16"),
        (6, 2, "float32"),
        (4, 1, "float16"),
        (5, 1, "float16"),
        (8, 1, "float32"),
    ],
)
def test_query_heads_share_their_key_head(compile_kernel, unwritten, h_q, h_kv, dtype):
    shape = Shape(h_q=h_q, h_kv=h_kv, dtype=dtype)
    check(attend(compile_kernel, unwritten, shape, rows=1), shape, 70, 1)
    check(attend(compile_kernel, unwritten, shape), shape, 30, 40)


@pytest.mark.parametrize("d", [10, 16, 24, 48, 96, 128])
def test_heads_of_any_size(compile_kernel, unwritten, d):
    shape = Shape(h_q=2, h_kv=1, d=d, dtype="float16")
    check(attend(compile_kernel, unwritten, shape, rows=1), shape, 64, 1)
    check(attend(compile_kernel, unwritten, shape), shape, 3, 18)


def test_every_level_agrees(compile_kernel, unwritten, level):
    shape = Shape(dtype="float16")
    check(attend(compile_kernel, unwritten, shape, level=level), shape, 50, 20)


def test_any_number_of_tokens(compile_kernel, unwritten):
    shape = Shape()
    run = attend(compile_kernel, unwritten, shape)
    for m in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70):
        for length in (0, 1, 62):
            check(run, shape, length, m, seed=m)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_decoding_over_the_ends_of_pages(compile_kernel, unwritten, dtype):
    shape = Shape(dtype=dtype)
    run = attend(compile_kernel, unwritten, shape, rows=1)
    for length in (0, 1, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129, 300):
        check(run, shape, length, 1, seed=length)


def test_pages_of_another_length(compile_kernel, unwritten):
    shape = Shape(page=16)
    run = attend(compile_kernel, unwritten, shape)
    for length in (0, 14, 15, 16, 40):
        check(run, shape, length, 20, seed=length)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e18])
def test_huge_scores_choose_the_largest(compile_kernel, unwritten, scale):
    shape = Shape(h_q=2, h_kv=1)
    cache = Cache(shape, 200)
    q = np.zeros((1, 2, 32), np.float32)
    q[:, :, 0] = scale  # the score is one component of the key: no sum, no cancellation
    got = attend(compile_kernel, unwritten, shape, rows=1)(q, cache, 199)
    best = cache.keys(200)[:, 0, 0].argmax()
    assert np.abs(got[0] - cache.values(200)[best, 0]).max() <= 1e-3


def test_equal_scores_give_the_mean_of_the_values(compile_kernel, unwritten):
    shape = Shape()
    cache = Cache(shape, 150)
    run = attend(compile_kernel, unwritten, shape)
    got = run(np.zeros((20, 4, 32), np.float32), cache, 130)
    for i in range(20):
        mean = cache.values(131 + i).mean(axis=0).repeat(2, axis=0)
        np.testing.assert_allclose(got[i], mean, rtol=0, atol=150 * EPS)


def test_very_negative_scores_still_count(compile_kernel, unwritten):
    shape = Shape(h_q=1, h_kv=1)
    cache = Cache(shape, 100)
    cache.k[...] = 1e8
    q = np.full((1, 1, 32), -1e8, np.float32)  # every score -5.7e16
    got = attend(compile_kernel, unwritten, shape, rows=1)(q, cache, 99)
    np.testing.assert_allclose(got[0], cache.values(100).mean(axis=0), rtol=0, atol=100 * EPS)


def test_what_lies_beyond_the_last_token_has_no_weight(compile_kernel, unwritten):
    shape = Shape()
    run = attend(compile_kernel, unwritten, shape)
    q = np.random.default_rng(5).standard_normal((7, 4, 32)).astype(np.float32)
    clean, stale = Cache(shape, 80), Cache(shape, 80)
    after = np.arange(64) >= 67 - 64
    page = stale.table[1]
    stale.k[LAYER, page][..., after] = 3e4
    stale.v[LAYER, page][:, after] = 3e4
    np.testing.assert_array_equal(run(q, clean, 60), run(q, stale, 60))


# ---- append -----------------------------------------------------------------------------


def rms_norm(x, gamma):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gamma


def rotate(x, angles):
    """x[m, h, d] by angles [m, d]."""
    cos, sin = np.split(angles[:, None], 2, axis=-1)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "length", "m"),
    [
        pytest.param(Shape(), 0, 5, id="from the start"),
        pytest.param(Shape(), 60, 70, id="over two page ends"),
        pytest.param(Shape(h_q=5, h_kv=1, d=48), 63, 2, id="odd heads"),
        pytest.param(Shape(h_q=2, h_kv=2, d=128), 64, 1, id="a page begins"),
        pytest.param(Shape(h_q=8, h_kv=1, d=16, page=16), 15, 18, id="short pages"),
    ],
)
def test_append_normalizes_rotates_and_writes_its_slots_only(
    compile_kernel, unwritten, shape, length, m, dtype
):
    shape = Shape(shape.h_q, shape.h_kv, shape.d, dtype, shape.page)
    random = np.random.default_rng(m)
    qkv = random.standard_normal((1, m, (shape.h_q + 2 * shape.h_kv) * shape.d))
    gamma_q, gamma_k = random.standard_normal((2, shape.d)).astype(np.float32)
    turns = random.uniform(0, 7, (m, shape.d // 2))
    angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
    qkv = qkv.astype(np.float32)
    before = Cache(shape, length + m)

    run = compile_kernel(attention.append(shape.op, shape.kv, None if m > 1 else 1))
    q = unwritten((1, m, shape.h_q, shape.d))
    args = (qkv, gamma_q, gamma_k, angles, *before.arrays(length), LAYER, q)
    *_, k_pages, v_pages, _, _, q = run(*args)

    heads = qkv[0].reshape(m, -1, shape.d).astype(np.float64)
    exact_q, exact_k, exact_v = np.split(heads, [shape.h_q, shape.h_q + shape.h_kv], axis=1)
    exact_q = rotate(rms_norm(exact_q, gamma_q), angles)
    exact_k = rotate(rms_norm(exact_k, gamma_k), angles)
    # Values of a few units after some d roundings; what is stored then rounds to the cache.
    stored = max(np.finfo(dtype).eps, shape.d * EPS)
    np.testing.assert_allclose(q[0], exact_q, rtol=0, atol=2 * shape.d * EPS)

    after = Cache(shape, length + m)
    after.k, after.v = k_pages.copy(), v_pages.copy()
    got_k, got_v = after.keys(length + m)[length:], after.values(length + m)[length:]
    np.testing.assert_allclose(got_k, exact_k, rtol=stored, atol=2 * shape.d * EPS)
    np.testing.assert_array_equal(got_v, exact_v.astype(dtype))

    # Everything else is as it was: other layers, other pages, earlier and later slots.
    for i in range(length, length + m):
        page, slot = before.table[i // shape.page], i % shape.page
        k_pages[LAYER, page, :, :, slot] = before.k[LAYER, page, :, :, slot]
        v_pages[LAYER, page, :, slot] = before.v[LAYER, page, :, slot]
    np.testing.assert_array_equal(k_pages, before.k)
    np.testing.assert_array_equal(v_pages, before.v)
