"""The kernels of attention over an int8 cache, against float64 on what its codes stand for.

Codes are exact, so `exact_attention` on code · scale has float32's bound here too: a score is
summed over codes and scaled once, which is one rounding more, and the bound has room for four.
"""

from functools import cache

import msgspec
import numpy as np
import pytest

from mlc_compile.artifact import SCALE_ROWS
from mlc_compile.schedule.kernels import attention
from mlc_compile.target import find_target

from .flat_cache import EXTREMES, LAYER, Pages, attending

EPS = np.finfo(np.float32).eps
SIDES = ("key", "value")


def int8(shape, **fields):
    return shape(dtype="int8", **fields)


# ---- attend -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attend(compile_kernel, unwritten):
    """`attend(shape, rows, level)(q, pages, length)`: o like q[m, h_q, d]."""

    @cache
    def compiled(shape, rows=None, level="cpu"):
        func = attention.attend(shape.op, shape.kv, find_target(level), rows)
        return attending(compile_kernel(func, level), shape, unwritten)

    return compiled


@pytest.fixture
def check(exact_attention):
    """`check(run, pages, length, m)`: `run` of m random queries is as exact as float32 can be."""

    def compare(run, pages, length, m):
        shape = pages.shape
        q = np.random.default_rng(m).standard_normal((m, shape.h_q, shape.d)).astype(np.float32)
        exact, bound = exact_attention(q, *pages.tokens(length + m), length)
        assert np.isfinite(bound).all()
        assert (np.abs(run(q, pages, length) - exact) <= bound).all()

    return compare


@pytest.mark.parametrize(("h_q", "h_kv"), [(6, 2), (5, 1)])
def test_query_heads_share_their_key_head(attend, check, shape, h_q, h_kv):
    heads = int8(shape, h_q=h_q, h_kv=h_kv)
    check(attend(heads, rows=1), Pages(heads, 71), 70, 1)
    check(attend(heads), Pages(heads, 70), 30, 40)


@pytest.mark.parametrize("d", [10, 128])
def test_heads_of_any_size(attend, check, shape, d):
    heads = int8(shape, h_q=2, h_kv=1, d=d)
    check(attend(heads, rows=1), Pages(heads, 65), 64, 1)
    check(attend(heads), Pages(heads, 21), 3, 18)


def test_every_level_agrees(attend, check, shape, level):
    heads = int8(shape)
    check(attend(heads, level=level), Pages(heads, 70), 50, 20)


@pytest.mark.parametrize("page", [16, 32])
def test_over_the_ends_of_pages(attend, check, shape, page):
    heads = int8(shape, page=page)
    one, many = attend(heads, rows=1), attend(heads)
    for length in (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 300):
        check(one, Pages(heads, length + 1, length), length, 1)
        check(many, Pages(heads, length + 20, length), length, 20)


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_pages(attend, check, shape, name):
    heads = int8(shape)
    pages = Pages(heads, 90)
    EXTREMES[name](pages)
    check(attend(heads, rows=1), pages, 80, 1)
    check(attend(heads), pages, 60, 30)


def test_what_lies_beyond_the_last_token_has_no_weight(attend, shape):
    heads = int8(shape)
    run = attend(heads)
    q = np.random.default_rng(5).standard_normal((7, 4, 32)).astype(np.float32)
    clean, stale = Pages(heads, 80), Pages(heads, 80)
    page, after = stale.table[67 // 32], np.arange(32) >= 67 % 32  # positions 60 to 66 are asked
    stale.scales[LAYER, page][..., after] = np.nan
    stale.v[LAYER, page][:, after] = 127
    np.testing.assert_array_equal(run(q, clean, 60), run(q, stale, 60))


# ---- append, and one token in one launch ------------------------------------------------


class Call:
    """Inputs of `m` tokens that follow `length` others."""

    def __init__(self, shape, length, m, seed=0):
        random = np.random.default_rng(seed)
        self.shape, self.length, self.m = shape, length, m
        width = (shape.h_q + 2 * shape.h_kv) * shape.d
        self.qkv = random.standard_normal((1, m, width)).astype(np.float32)
        self.gammas = [random.uniform(0.5, 2, shape.d).astype(np.float32) for _ in range(2)]
        turns = random.uniform(0, 7, (m, shape.d // 2))
        self.angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
        self.pages = Pages(shape, length + m, seed)

    @property
    def heads(self):
        """A view of qkv: float32 [m, head, d]."""
        return self.qkv[0].reshape(self.m, -1, self.shape.d)

    @property
    def values(self):
        """A view of the new values: [m, h_kv, d]."""
        return self.heads[:, -self.shape.h_kv :]

    def inputs(self, i=None):
        """What a kernel takes: all tokens, or token i behind those before it."""
        rows, start = (slice(None), 0) if i is None else (slice(i, i + 1), i)
        pages = self.pages.arrays(self.length + start)
        return (self.qkv[:, rows], *self.gammas, self.angles[rows], *pages, LAYER)

    def exact(self):
        """float64 q, k and v [m, head, d]."""
        s = self.shape
        q, k, v = np.split(self.heads.astype(float), [s.h_q, s.h_q + s.h_kv], axis=1)
        q, k = (self._turned(x, gamma) for x, gamma in zip((q, k), self.gammas, strict=True))
        return q, k, v

    def _turned(self, x, gamma):
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.shape.op.eps) * gamma
        cos, sin = np.split(self.angles[:, None].astype(float), 2, axis=-1)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@pytest.fixture(scope="module")
def kernels(compile_kernel, unwritten):
    """`kernels(shape)`: (append, step), each of a Call; what they write is in its pages."""

    @cache
    def make(shape, level="cpu", streams=1):
        target = msgspec.structs.replace(find_target(level), streams=streams)
        append = compile_kernel(attention.append(shape.op, shape.kv, None), level)
        step = compile_kernel(attention.step(shape.op, shape.kv, target), level)

        def at_once(call):
            q = unwritten((1, call.m, shape.h_q, shape.d))
            *_, k, v, _, _, q = append(*call.inputs(), q)
            call.pages.k, call.pages.v = k.copy(), v.copy()
            return q[0]

        def one_by_one(call):
            results = []
            for i in range(call.m):
                o = unwritten((1, 1, shape.h_q * shape.d))
                *_, k, v, _, _, o = step(*call.inputs(i), o)
                call.pages.k, call.pages.v = k.copy(), v.copy()
                results.append(o.reshape(shape.h_q, shape.d))
            return np.stack(results)

        return at_once, one_by_one

    return make


def stored(call):
    """Codes and scales of the new tokens: a pair for keys, a pair for values."""
    n = call.length + call.m
    pairs = zip(call.pages.codes(n), call.pages.scales_of(n), strict=True)
    return [(codes[call.length :], scales[call.length :]) for codes, scales in pairs]


APPENDS = {  # fields of the shape, tokens that are there, tokens to append
    "from the start": ({}, 0, 5),
    "over three page ends": ({}, 30, 70),
    "odd heads over a page end": ({"h_q": 5, "h_kv": 1, "d": 48}, 31, 2),
    "a page begins": ({"h_q": 2, "d": 128}, 32, 1),
    "short pages": ({"h_q": 8, "h_kv": 1, "d": 16, "page": 16}, 15, 18),
    "narrow vectors": ({"h_q": 1, "h_kv": 1, "d": 10, "page": 64}, 60, 9),
}


@pytest.mark.parametrize("case", APPENDS)
def test_codes_are_the_nearest_and_nothing_else_is_written(kernels, shape, case):
    fields, length, m = APPENDS[case]
    heads = int8(shape, **fields)
    call, before = Call(heads, length, m), Pages(heads, length + m)
    kernels(heads)[0](call)
    # The kernel's keys are off by some 2 d eps, of values of a few units; values are read as
    # they are. In both a product with 127 / max has two roundings.
    errors = 2 * heads.d * EPS, 0
    for (codes, scales), x, error in zip(stored(call), call.exact()[1:], errors, strict=True):
        top = np.abs(x).max(axis=-1, keepdims=True)
        assert (np.abs(scales - top / 127) <= error / 127 + EPS * scales).all()
        nearest = (0.5 + 127 * 2 * EPS) * scales + 2 * error
        assert (np.abs(codes * scales - x) <= nearest).all()
        assert (np.abs(codes).max(axis=-1) == 127).all()
    after = call.pages
    for i in range(length, length + m):
        page, slot = before.table[i // heads.page], i % heads.page
        after.k[LAYER, page, :, :-SCALE_ROWS, slot] = before.k[LAYER, page, :, :-SCALE_ROWS, slot]
        after.v[LAYER, page, :, slot] = before.v[LAYER, page, :, slot]
        after.scales[LAYER, page, ..., slot] = before.scales[LAYER, page, ..., slot]
    np.testing.assert_array_equal(after.k, before.k)
    np.testing.assert_array_equal(after.v, before.v)


HUGE = float(np.finfo(np.float32).max)
ROWS = {  # a value, and its scale and codes where those are exact
    "zeros": ([0.0], 0, [0]),
    "a half is rounded to even": (
        [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5],
        1,
        [127, 0, 2, 2, 0, -2, -2, 126],
    ),
    "one outlier": ([-1e6, 1, 2, 3], 1e6 / 127, [-127, 0, 0, 0]),
    "the largest of both signs": ([5, -5], 5 / 127, [127, -127]),
    "the largest float32": ([HUGE, -HUGE], HUGE / 127, [127, -127]),
    "negative zero": ([-0.0], 0, [0]),
}


@pytest.mark.parametrize("name", ROWS)
def test_extreme_values_are_stored_exactly(kernels, shape, name):
    row, scale, codes = ROWS[name]
    heads = int8(shape)
    call = Call(heads, 30, 5)
    call.values[...] = np.resize(row, heads.d)
    kernels(heads)[0](call)
    _, (found, scales) = stored(call)
    np.testing.assert_array_equal(scales, np.float32(scale))
    np.testing.assert_array_equal(found, np.broadcast_to(np.resize(codes, heads.d), found.shape))


def test_a_value_too_small_to_scale_is_still_finite(kernels, shape):
    call = Call(int8(shape), 0, 3)
    call.values[...] = 1e-35
    kernels(call.shape)[0](call)
    _, (codes, scales) = stored(call)
    assert (np.abs(codes * scales - 1e-35) <= 1e-35).all()


def test_a_nan_is_not_lost(kernels, shape):
    call = Call(int8(shape), 0, 2)
    call.values[1, 0, 7] = np.nan
    kernels(call.shape)[0](call)
    _, (_, scales) = stored(call)
    assert np.isnan(scales[..., 0]).tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("d", [48, 128])
def test_a_prompt_and_single_tokens_store_the_same_bytes(kernels, shape, d):
    heads = int8(shape, d=d, h_q=2, h_kv=2)
    together, apart = Call(heads, 29, 40), Call(heads, 29, 40)
    at_once, one_by_one = kernels(heads)
    at_once(together)
    one_by_one(apart)
    np.testing.assert_array_equal(together.pages.k, apart.pages.k)
    np.testing.assert_array_equal(together.pages.v, apart.pages.v)


def test_every_level_stores_the_same_for_a_prompt_and_single_tokens(kernels, shape, level):
    heads = int8(shape)
    together, apart = Call(heads, 31, 3), Call(heads, 31, 3)
    at_once, one_by_one = kernels(heads, level)
    at_once(together)
    one_by_one(apart)
    np.testing.assert_array_equal(together.pages.k, apart.pages.k)
    np.testing.assert_array_equal(together.pages.v, apart.pages.v)


@pytest.mark.parametrize(
    ("fields", "streams"),
    [({}, 1), ({"h_q": 5, "h_kv": 1, "d": 48}, 1), ({"page": 16}, 1), ({"h_q": 8, "h_kv": 4}, 8)],
    ids=str,
)
def test_a_step_attends_to_what_is_stored(kernels, exact_attention, shape, fields, streams):
    """Its query is off by some 2 d eps of values of a few units, and so is a score."""
    heads = int8(shape, **fields)
    for length in (0, 15, 16, 31, 32, 64, 129):
        call = Call(heads, length, 1, seed=length)
        got = kernels(heads, streams=streams)[1](call)
        keys, values = call.pages.tokens(length + 1)
        read = np.abs(keys.repeat(heads.h_q // heads.h_kv, axis=1)).sum(axis=-1)
        doubt = 2 * heads.d * EPS * read.T[:, None] / np.sqrt(heads.d)
        exact, bound = exact_attention(call.exact()[0], keys, values, length, doubt)
        assert (np.abs(got - exact) <= bound).all()
