"""Attention on tiles of bfloat16 against float64, in two bounds.

HALF, half a unit of 8 bits, is what a number loses by rounding, and four are rounded: q, k,
weights and v. Weights are summed before they are, so each product of a weight and a value moves
by its own rounding alone.

- Of q, k and v as they are, a score is off by 2 HALF sum|q k| / sqrt(d) (`doubt`, which
  `exact_attention` makes a factor of the weights), and a weighted value is rounded twice.
- What is multiplied is known: q times `scale_of(d)` in float32, k and v, each rounded, or codes of
  an int8 cache, which are exact. Then a weighted value is rounded once, a weight itself is within
  2**-13, as good as a score that is off by as much, and all else is what float32 may be off by.
"""

from functools import cache
from math import e, log2

import numpy as np
import pytest

from mlc_compile.schedule.kernels import attention
from mlc_compile.schedule.kernels.attention.state import scale_of

from .bf16_products import BEST, EPS, HALF, blank, pairs, rounded, unpaired
from .emulated_tiles import EmulatedTiles
from .flat_cache import EXTREMES, LAYER, Cache, Pages, attending

Share = attention.Share
POINTS = list(Share.space().points())
LENGTHS = (0, 1, 30, 31, 32, 33, 500)
DTYPES = ("float32", "float16", "int8")
DEFAULT = Share()
OFF = 2.0**-13  # a weight may be, of itself
UNITS = dict.fromkeys([BEST, "emulated"])
ODD = {"h_q": 5, "h_kv": 1, "dtype": "float16"}  # a shape of which each share is compiled once


def filled(shape, tokens, seed=0):
    """A cache of the shape's type that holds `tokens`."""
    return (Pages if shape.kv.scaled else Cache)(shape, tokens, seed)


def queries(shape, m, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((m, shape.h_q, shape.d)).astype(np.float32)


def multiplied(q):
    """Queries as `append` rounds them."""
    return rounded(q * np.float32(scale_of(q.shape[-1])))


@pytest.fixture
def attend(unit, unwritten):
    """`attend(shape, share)(q, cache, length)`: o like q[m, h_q, d]."""

    @cache
    def compiled(shape, share=DEFAULT):
        kernel = unit.compile(attention.attend_tiles(shape.op, shape.kv, unit.make(), share))
        return attending(kernel, shape, unwritten, lambda q: pairs(multiplied(q)))

    return compiled


@pytest.fixture
def near(exact_attention):
    """`near(got, q, keys, values, length, times, doubt)`: `got` is attention as exact as that.

    A weighted value is rounded so many `times`; it then is itself times 1 + off.
    """

    def check(got, q, keys, values, length, times, doubt=0):
        exact, bound = exact_attention(q, keys, values, length, doubt)
        weighted, _ = exact_attention(q, keys, np.abs(values), length)
        off = (1 + HALF) ** times - 1
        bound = bound * (1 + off) + off * weighted
        assert np.isfinite(bound).all()
        assert (np.abs(got - exact) <= bound).all()  # false for NaN, and so for what is not written

    return check


@pytest.fixture
def near_rounded(near):
    """`near_rounded(got, q, cache, length)`: of what is multiplied, `got` is the attention."""

    def check(got, q, cache, length):
        exactly = multiplied(q) / (log2(e) / np.sqrt(q.shape[-1]))  # as if it were to be scaled
        tokens = cache.tokens(length + len(q))
        if not cache.shape.kv.scaled:
            tokens = [rounded(x).astype(np.float64) for x in tokens]
        near(got, exactly, *tokens, length, times=1, doubt=OFF)

    return check


@pytest.fixture
def check(near, near_rounded):
    """`check(run, shape, length, m)`: `run` of m random queries, by both bounds."""

    def compare(run, shape, length, m, seed=0):
        cache, q = filled(shape, length + m, seed), queries(shape, m, seed)
        got = run(q, cache, length)
        keys, values = cache.tokens(length + m)
        read = np.abs(keys).repeat(shape.h_q // shape.h_kv, axis=1).transpose(1, 2, 0)
        magnitude = np.abs(q).swapaxes(0, 1) @ read / np.sqrt(shape.d)
        doubt = ((1 + HALF) ** 2 - 1) * magnitude + OFF
        near(got, q, keys, values, length, times=2, doubt=doubt)
        near_rounded(got, q, cache, length)

    return compare


@pytest.mark.parametrize("length", LENGTHS)
def test_any_number_of_tokens(attend, check, shape, length):
    run = attend(shape())
    for m in (*range(1, 34), 47, 48, 64, 65, 100, 200):
        check(run, shape(), length, m, seed=m)


@pytest.mark.parametrize(
    ("unit", "dtype"),
    dict.fromkeys(
        [*((BEST, dtype) for dtype in DTYPES), ("emulated", "float32"), ("emulated", "int8")]
    ),
    indirect=["unit"],
)
def test_any_cache(attend, check, shape, dtype):
    heads = shape(dtype=dtype)
    run = attend(heads)
    for m in (1, 16, 33, 100):
        for length in LENGTHS:
            check(run, heads, length, m, seed=m + length)


# An odd number of heads to a key is an odd number of tiles, where tokens are few.
@pytest.mark.parametrize(
    ("h_q", "h_kv", "dtype"),
    [
        *[(1, 1, "int8"), (4, 2, "float16"), (6, 2, "int8")],
        *[(5, 1, "float16"), (8, 1, "int8"), (17, 1, "float16")],
    ],
)
def test_query_heads_share_their_key_head(attend, check, shape, h_q, h_kv, dtype):
    heads = shape(h_q=h_q, h_kv=h_kv, dtype=dtype)
    run = attend(heads)
    for m, length in ((1, 0), (17, 33), (65, 500), (130, 1)):
        check(run, heads, length, m)


@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        *[(32, "float32"), (32, "float16"), (32, "int8"), (64, "float16"), (64, "int8")],
        *[(96, "float32"), (96, "int8"), (128, "float16"), (128, "int8")],
    ],
)
def test_heads_of_any_number_of_groups(attend, check, shape, d, dtype):
    heads = shape(h_q=4, h_kv=2, d=d, dtype=dtype)
    run = attend(heads)
    for m, length in ((1, 31), (33, 0), (64, 500)):
        check(run, heads, length, m)


@pytest.mark.parametrize("share", POINTS, ids=str)
def test_any_share_will_do(attend, check, shape, share):
    """Up to three of them, the last of few tokens; pages end with a block and between blocks."""
    heads = shape(**ODD)
    run = attend(heads, share)
    for m, length in (
        (1, 0),
        (40, 0),
        (share.tokens + 7, 31),
        (2 * share.tokens + 1, 32 * share.pages),
        (70, 500),
    ):
        check(run, heads, length, m)


@pytest.mark.parametrize("share", POINTS, ids=str)
def test_a_query_is_answered_alike_whatever_is_asked_beside_it(attend, shape, share):
    """A prompt in two calls gives the bits of one: what nobody sees has no weight at all."""
    heads = shape(**ODD)
    run = attend(heads, share)
    cache, q = filled(heads, 230), queries(heads, 150)
    whole = run(q, cache, 80)
    for first in (1, 16, 65, 149):
        parts = run(q[:first], cache, 80), run(q[first:], cache, 80 + first)
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_spoils_no_row_but_its_own(attend, shape, bad):
    run = attend(shape())
    cache, q = filled(shape(), 90), queries(shape(), 40)
    expected = run(q, cache, 50)
    q[21, 1, 7] = bad
    got = run(q, cache, 50)
    got[21, 1] = expected[21, 1]
    np.testing.assert_array_equal(got, expected)


def test_equal_queries_of_a_key_head_get_equal_answers(attend, shape):
    heads = shape(h_q=16, h_kv=1)
    q = queries(heads, 50)
    q[...] = q[:, :1]
    got = attend(heads)(q, filled(heads, 60), 10)
    np.testing.assert_array_equal(got, np.broadcast_to(got[:, :1], got.shape))


def _poison(cache, length, m):
    """Make NaN of every slot behind the last token, of pages of nobody and of other layers."""
    page = cache.shape.page
    owned = cache.table[: -(-(length + m) // page)]
    last, after = owned[-1], np.arange(page) >= (length + m - 1) % page + 1
    nobody = np.setdiff1d(np.arange(len(cache.table)), owned)
    others = [layer for layer in range(len(cache.k)) if layer != LAYER]
    if cache.shape.kv.scaled:
        cache.scales[others], cache.scales[:, nobody] = np.nan, np.nan
        cache.scales[:, last][..., after] = np.nan
        cache.v[:, last][..., after, :] = 127
        return
    for pages in (cache.k, cache.v):
        pages[others], pages[:, nobody] = np.nan, np.nan
    cache.k[:, last][..., after], cache.v[:, last][..., after, :] = np.nan, np.nan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "m"), [(60, 7), (0, 1), (0, 33), (31, 64), (33, 100)])
def test_what_no_token_is_in_does_not_count_whatever_it_is(attend, shape, dtype, length, m):
    heads = shape(dtype=dtype)
    clean, stale = (filled(heads, length + m) for _ in range(2))
    _poison(stale, length, m)
    q, run = queries(heads, m), attend(heads)
    np.testing.assert_array_equal(run(q, stale, length), run(q, clean, length))


@pytest.mark.parametrize("unit", UNITS, indirect=True)
@pytest.mark.parametrize("scale", [1e3, 1e18, 1e36])
def test_huge_scores_choose_the_largest(attend, shape, scale):
    heads = shape(h_q=2, h_kv=1)
    cache = filled(heads, 200)
    cache.k[LAYER, :, :, 0] *= 0.5
    cache.k[LAYER, cache.table[77 // 32], 0, 0, 77 % 32] = 9
    q = np.zeros((60, 2, 32), np.float32)
    q[:, :, 0] = scale  # the score is one component of the key: no sum, no cancellation
    got = attend(heads)(q, cache, 140)
    chosen = np.broadcast_to(rounded(cache.values(200)[77, 0]), got.shape)
    np.testing.assert_allclose(got, chosen, rtol=OFF, atol=0)


def test_outliers_do_not_drown_the_rest(attend, shape, near_rounded):
    """Of some components, as rotated keys have them; and maxima that rise from page to page."""
    cache = filled(shape(), 190)
    cache.k[..., 5, :] *= 100
    for number, page in enumerate(cache.table):
        cache.k[LAYER, page] *= 1 + number
    q = queries(shape(), 70)
    q[..., 7] *= 50
    near_rounded(attend(shape())(q, cache, 120), q, cache, 120)


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_pages_of_codes(attend, shape, near_rounded, name):
    cache, q = filled(shape(dtype="int8"), 130), queries(shape(), 70)
    EXTREMES[name](cache)
    near_rounded(attend(cache.shape)(q, cache, 60), q, cache, 60)


@pytest.mark.parametrize("share", [Share(pages=1), Share(pages=8)], ids=str)
def test_equal_scores_give_the_mean_of_the_values(attend, shape, near_rounded, share):
    cache, q = filled(shape(), 150), np.zeros((20, 4, 32), np.float32)
    got = attend(shape(), share)(q, cache, 130)
    near_rounded(got, q, cache, 130)
    for i in range(20):
        mean = rounded(cache.values(131 + i)).astype(float).mean(axis=0).repeat(2, axis=0)
        # Equal weights are rounded alike, so what is off beside OFF are sums of float32.
        np.testing.assert_allclose(got[i], mean, rtol=OFF, atol=150 * EPS)


def test_very_negative_scores_still_count(attend, shape):
    heads = shape(h_q=1, h_kv=1)
    cache = filled(heads, 100)
    cache.k[...] = 1e8
    q = np.full((1, 1, 32), -1e8, np.float32)  # every score -5.7e16
    got = attend(heads)(q, cache, 99)
    mean = rounded(cache.values(100)).astype(float).mean(axis=0)
    np.testing.assert_allclose(got[0], mean, rtol=OFF, atol=100 * EPS)


def test_the_cache_is_as_it_was(unit, shape, unwritten):
    func = attention.attend_tiles(shape().op, shape().kv, unit.make(), DEFAULT)
    cache = filled(shape(), 70)
    inputs = pairs(multiplied(queries(shape(), 20)))[None], *cache.arrays(50)
    *after, _ = unit.compile(func)(*inputs, LAYER, unwritten((1, 20, 4 * 32)))
    for got, before in zip(after, inputs, strict=True):
        np.testing.assert_array_equal(got, before)


@pytest.mark.parametrize(
    ("unit", "h_q", "d"),
    dict.fromkeys([(BEST, 1, 32), (BEST, 5, 64), (BEST, 4, 96), ("emulated", 1, 32)]),
    indirect=["unit"],
)
def test_what_is_rounded_at_once_is_the_nearest(attend, unit, shape, h_q, d):
    """In the rows that a product reads, of which what pads them is not written."""
    heads = shape(h_q=h_q, h_kv=1, d=d)
    func = attention.attend_tiles(heads.op, heads.kv, unit.make(), DEFAULT, rounded=True)
    plain, at_once = attend(heads), unit.compile(func)
    for m, length in ((1, 0), (17, 33), (200, 31)):
        cache, q = filled(heads, length + m), queries(heads, m)
        words = pairs(multiplied(q))[None]
        *_, o = at_once(words, *cache.arrays(length), LAYER, blank(m, h_q * d))
        expected = rounded(plain(q, cache, length)).reshape(m, -1)
        np.testing.assert_array_equal(unpaired(o, h_q * d), expected)


# ---- what is written ---------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"d": 48}, {"d": 16}, {"page": 16}, {"page": 64}], ids=str)
def test_heads_and_pages_are_of_whole_groups(shape, fields):
    heads = shape(**fields)
    with pytest.raises(AssertionError):
        attention.attend_tiles(heads.op, heads.kv, EmulatedTiles(), DEFAULT)


def test_a_task_configures_once_and_leaves_nothing_behind(shape):
    unit = EmulatedTiles()
    attention.attend_tiles(shape().op, shape().kv, unit, DEFAULT)
    first, *between, last = unit.log
    assert (first, last) == (("configure",), ("release",))
    assert not {first, last} & set(between)


def test_scores_begin_with_zeros_and_outputs_with_what_they_were(shape):
    unit = EmulatedTiles()
    attention.attend_tiles(shape().op, shape().kv, unit, DEFAULT)
    read = [("load", t) for t in (4, 5, 6, 7)]
    products = [("multiply", 2 * i + c, 4 + i, 6 + c) for i in range(2) for c in range(2)]
    stores = [("store", s) for s in range(4)]
    scores, out = ([(begin, s) for s in range(4)] for begin in ("zero", "load"))
    body = [*read, *products, *stores]
    assert unit.log[1:-1] == [*scores, *body, *out, *body]
