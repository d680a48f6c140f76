"""The flat cache's kernels, append and attend, against float64 on what the pages hold."""

import numpy as np
import pytest
from tvm import tirx
from tvm.sym import Analyzer

from mlc_compile.schedule.kernels import attention
from mlc_compile.schedule.kernels.attention.attend import in_turn
from mlc_compile.schedule.kernels.attention.state import scale_of
from mlc_compile.target import find_target

from .bf16_products import pairs, rounded
from .flat_cache import LAYER, Cache, Pages, attending

EPS = np.finfo(np.float32).eps


@pytest.fixture
def attend(compile_kernel, unwritten):
    """`attend(shape, rows, level)(q, cache, length)`: o like q[m, h_q, d]."""

    def compiled(shape, rows=None, level="cpu"):
        func = attention.attend(shape.op, shape.kv, find_target(level), rows)
        return attending(compile_kernel(func, level), shape, unwritten)

    return compiled


@pytest.fixture
def check(exact_attention):
    """`check(run, shape, length, m)`: `run` of m random queries is as exact as float32 can be."""

    def compare(run, shape, length, m, seed=0):
        cache = Cache(shape, length + m, seed)
        q = np.random.default_rng(seed).standard_normal((m, shape.h_q, shape.d))
        q = q.astype(np.float32)
        exact, bound = exact_attention(q, cache.keys(length + m), cache.values(length + m), length)
        assert (np.abs(run(q, cache, length) - exact) <= bound).all()

    return compare


@pytest.mark.parametrize(
    ("h_q", "h_kv", "dtype"),
    [
        (1, 1, "float32"),
        (4, 2, "float16"),
        (6, 2, "float32"),
        (4, 1, "float16"),
        (5, 1, "float16"),
        (8, 1, "float32"),
        (11, 1, "float16"),
    ],
)
def test_query_heads_share_their_key_head(attend, check, shape, h_q, h_kv, dtype):
    heads = shape(h_q=h_q, h_kv=h_kv, dtype=dtype)
    check(attend(heads, rows=1), heads, 70, 1)
    check(attend(heads), heads, 30, 40)


@pytest.mark.parametrize("d", [10, 24, 48, 128])
def test_heads_of_any_size(attend, check, shape, d):
    heads = shape(h_q=2, h_kv=1, d=d, dtype="float16")
    check(attend(heads, rows=1), heads, 64, 1)
    check(attend(heads), heads, 3, 18)


def test_every_level_agrees(attend, check, shape, level):
    heads = shape(dtype="float16")
    check(attend(heads, level=level), heads, 50, 20)


def test_any_number_of_tokens(attend, check, shape):
    run = attend(shape())
    for m in (*range(1, 34), 47, 48, 49, 63, 64, 65, 70, 130):
        for length in (0, 1, 30, 62):
            check(run, shape(), length, m, seed=m)


# 32 is what libraries ship with; 16 is one vector of scores a page, 64 is four.
@pytest.mark.parametrize(
    ("page", "dtype"), [(32, "float32"), (32, "float16"), (16, "float32"), (64, "float16")]
)
def test_decoding_over_the_ends_of_pages(attend, check, shape, page, dtype):
    heads = shape(dtype=dtype, page=page)
    run = attend(heads, rows=1)
    for length in (0, 1, 15, 16, 17, 30, 31, 32, 33, 62, 63, 64, 65, 95, 96, 97, 127, 128, 300):
        check(run, heads, length, 1, seed=length)


@pytest.mark.parametrize("page", [16, 32, 64])
def test_prefilling_over_the_ends_of_pages(attend, check, shape, page):
    heads = shape(page=page)
    run = attend(heads)
    for length in (0, page - 2, page - 1, page, page + 1, 2 * page):
        check(run, heads, length, 20, seed=length)


@pytest.mark.parametrize("page", [8, 24, 40])
def test_a_page_must_be_whole_vectors(shape, page):
    heads = shape(page=page)
    with pytest.raises(AssertionError, match="whole vectors"):
        attention.attend(heads.op, heads.kv, find_target("cpu"), 1)


@pytest.mark.parametrize("scale", [1e3, 1e18])
def test_huge_scores_choose_the_largest(attend, shape, scale):
    heads = shape(h_q=2, h_kv=1)
    cache = Cache(heads, 200)
    cache.k[LAYER, :, :, 0] *= 0.5
    cache.k[LAYER, cache.table[77 // 32], 0, 0, 77 % 32] = 9
    q = np.zeros((1, 2, 32), np.float32)
    q[:, :, 0] = scale  # the score is one component of the key: no sum, no cancellation
    got = attend(heads, rows=1)(q, cache, 199)
    np.testing.assert_array_equal(got[0], cache.values(200)[[77, 77], 0])


def test_runs_of_tasks_cost_the_same():
    """Each step is taken once, and two tasks that follow make up for one another."""
    for count in range(1, 41):
        given = [
            in_turn(tirx.IntImm("int32", i), tirx.IntImm("int32", count)) for i in range(count)
        ]
        steps = [int(Analyzer().simplify(step)) for step in given]
        assert sorted(steps) == list(range(count))
        pairs = zip(steps[0::2], steps[1::2], strict=False)
        assert {one + other for one, other in pairs} <= {count - 1}


def test_outliers_do_not_drown_the_rest(attend, shape, exact_attention):
    """Of some components, as rotated keys have them; and maxima that rise from page to page."""
    cache, random = Cache(shape(), 190), np.random.default_rng(3)
    cache.k[..., 5, :] *= 100
    for number, page in enumerate(cache.table):
        cache.k[LAYER, page] *= 1 + number
    q = random.standard_normal((70, 4, 32)).astype(np.float32)
    q[..., 7] *= 50
    exact, bound = exact_attention(q, cache.keys(190), cache.values(190), 120)
    assert (np.abs(attend(shape())(q, cache, 120) - exact) <= bound).all()


def test_pages_that_a_pass_does_not_see_are_not_read(attend, shape):
    cache = Cache(shape(), 96)
    for page in cache.table[1:]:
        cache.k[LAYER, page] = np.nan
        cache.v[LAYER, page] = np.nan
    q = np.random.default_rng(1).standard_normal((96, 4, 32)).astype(np.float32)
    got = attend(shape())(q, cache, 0)
    assert np.isfinite(got[:24]).all()  # the tokens of a pass with one of page 1 may be more
    assert np.isnan(got[32:]).all()


def test_equal_scores_give_the_mean_of_the_values(attend, shape):
    cache = Cache(shape(), 150)
    run = attend(shape())
    got = run(np.zeros((20, 4, 32), np.float32), cache, 130)
    for i in range(20):
        mean = cache.values(131 + i).mean(axis=0).repeat(2, axis=0)
        np.testing.assert_allclose(got[i], mean, rtol=0, atol=150 * EPS)


def test_very_negative_scores_still_count(attend, shape):
    heads = shape(h_q=1, h_kv=1)
    cache = Cache(heads, 100)
    cache.k[...] = 1e8
    q = np.full((1, 1, 32), -1e8, np.float32)  # every score -5.7e16
    got = attend(heads, rows=1)(q, cache, 99)
    np.testing.assert_allclose(got[0], cache.values(100).mean(axis=0), rtol=0, atol=100 * EPS)


def test_what_lies_beyond_the_last_token_has_no_weight(attend, shape):
    run = attend(shape())
    q = np.random.default_rng(5).standard_normal((7, 4, 32)).astype(np.float32)
    clean, stale = Cache(shape(), 80), Cache(shape(), 80)
    page, after = stale.table[67 // 32], np.arange(32) >= 67 % 32  # positions 60 to 66 are asked
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


APPENDS = {  # fields of the shape, tokens that are there, tokens to append
    "from the start": ({}, 0, 5),
    "over three page ends": ({"dtype": "float16"}, 30, 70),
    "odd heads over a page end": ({"h_q": 5, "h_kv": 1, "d": 48}, 31, 2),
    "a page begins": ({"h_q": 2, "d": 128, "dtype": "float16"}, 32, 1),
    "a page goes on": ({"h_q": 2, "d": 128}, 33, 1),
    "short pages": ({"h_q": 8, "h_kv": 1, "d": 16, "dtype": "float16", "page": 16}, 15, 18),
    "long pages": ({"page": 64}, 60, 70),
}


@pytest.mark.parametrize("case", APPENDS)
def test_append_normalizes_rotates_and_writes_its_slots_only(
    compile_kernel, unwritten, shape, case
):
    fields, length, m = APPENDS[case]
    shape = shape(**fields)
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
    stored = max(np.finfo(shape.dtype).eps, shape.d * EPS)
    np.testing.assert_allclose(q[0], exact_q, rtol=0, atol=2 * shape.d * EPS)

    after = Cache(shape, length + m)
    after.k, after.v = k_pages.copy(), v_pages.copy()
    got_k, got_v = after.keys(length + m)[length:], after.values(length + m)[length:]
    np.testing.assert_allclose(got_k, exact_k, rtol=stored, atol=2 * shape.d * EPS)
    np.testing.assert_array_equal(got_v, exact_v.astype(shape.dtype))

    # Everything else is as it was: other layers, other pages, earlier and later slots.
    for i in range(length, length + m):
        page, slot = before.table[i // shape.page], i % shape.page
        k_pages[LAYER, page, :, :, slot] = before.k[LAYER, page, :, :, slot]
        v_pages[LAYER, page, :, slot] = before.v[LAYER, page, :, slot]
    np.testing.assert_array_equal(k_pages, before.k)
    np.testing.assert_array_equal(v_pages, before.v)


@pytest.mark.parametrize("fields", [{}, {"h_q": 5, "h_kv": 1, "d": 96, "dtype": "int8"}], ids=str)
def test_append_may_round_its_queries(compile_kernel, unwritten, shape, level, fields):
    """As tiles multiply them: times `scale_of(d)`, in pairs. All else is written as ever."""
    heads, m, length = shape(**fields), 40, 30
    cache = (Pages if heads.kv.scaled else Cache)(heads, length + m)
    random = np.random.default_rng(m)
    turns = random.uniform(0, 7, (m, heads.d // 2))
    inputs = [
        random.standard_normal((1, m, (heads.h_q + 2 * heads.h_kv) * heads.d)),
        *random.standard_normal((2, heads.d)),
        np.concatenate([np.cos(turns), np.sin(turns)], axis=-1),
    ]
    args = (*(x.astype(np.float32) for x in inputs), *cache.arrays(length), LAYER)
    plain, rounding = (
        compile_kernel(attention.append(heads.op, heads.kv, None, rounded=kind), level)
        for kind in (False, True)
    )
    *rest, q = plain(*args, unwritten((1, m, heads.h_q, heads.d)))
    *others, words = rounding(*args, np.full((1, m, heads.h_q, heads.d // 2), -1, np.int32))
    np.testing.assert_array_equal(words, pairs(rounded(q * np.float32(scale_of(heads.d)))))
    for one, other in zip(rest, others, strict=True):
        np.testing.assert_array_equal(one, other)
