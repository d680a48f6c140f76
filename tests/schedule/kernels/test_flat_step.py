"""`attention.step`, one token in one launch, against append and attend, and against float64."""

import functools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import tvm
import tvm_ffi

from mlc_compile.schedule.kernels import attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.step import most_runs
from mlc_compile.target import find_target

THREADS = "runtime.NumThreads"
EPS = np.finfo(np.float32).eps
LAYER = 1  # the one of three that the kernels are asked for
NORM_EPS = 1e-6


class Token:
    """A token at position `length`, and the cache before it, its pages in any order."""

    def __init__(self, shape, length):
        random = np.random.default_rng(length)
        self.shape, self.length = shape, length
        width = (shape.h_q + 2 * shape.h_kv) * shape.d
        self.qkv = random.standard_normal((1, 1, width)).astype(np.float32)
        self.gammas = [random.uniform(0.5, 2, shape.d).astype(np.float32) for _ in range(2)]
        turns = random.uniform(0, 7, (1, shape.d // 2))
        self.angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
        pages = length // shape.page + 3  # two that no token is in
        self.k, self.v, self.table = shape.pages(pages, random)
        self.at = np.array([length], np.int32)

    @property
    def inputs(self):
        cache = (self.k, self.v, self.table, self.at)
        return (self.qkv, *self.gammas, self.angles, *cache, LAYER)

    def exact(self, attend):
        """float64 o[h_q, d], and how far from it float32 may be, by `attend` on exact inputs.

        The new key and query are off by some 2 d eps of values of a few units, so a score by
        their product's sum.
        """
        s = self.shape
        heads = self.qkv[0, 0].reshape(-1, s.d).astype(float)
        q, k, v = np.split(heads, [s.h_q, s.h_q + s.h_kv])
        q, k = (self._turned(x, gamma) for x, gamma in zip((q, k), self.gammas, strict=True))
        keys = self._tokens(self.k.transpose(0, 1, 4, 2, 3), k)
        values = self._tokens(self.v.transpose(0, 1, 3, 2, 4), v)
        read = keys.repeat(s.h_q // s.h_kv, axis=1)  # [n, h_q, d]
        doubt = 2 * s.d * EPS * np.abs(read).sum(axis=-1).T / np.sqrt(s.d)
        # The key is rounded to the cache's type from float32, here from float64: a unit apart.
        doubt[:, -1] += np.finfo(s.dtype).eps * np.abs(q * read[-1]).sum(axis=-1) / np.sqrt(s.d)
        o, bound = attend(q[None], keys, values, self.length, doubt[:, None])
        return o[0], bound[0]

    def _turned(self, x, gamma):
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + NORM_EPS) * gamma
        cos, sin = np.split(self.angles[0].astype(float), 2)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _tokens(self, pages, new):
        """[n, h_kv, d] in the order of tokens, ours last, from [layer, page, slot, h_kv, d]."""
        flat = self.shape.tokens(pages[LAYER, self.table])[: self.length + 1]
        flat[-1] = new.astype(self.shape.dtype)
        return flat


@pytest.fixture
def kernels(compile_kernel, unwritten):
    """`kernels(shape)`: (step, append then attend), each Token -> o[h_q, d], k_pages, v_pages."""

    def make(shape, level="cpu", **choice):
        target = find_target(level)
        tile = replace(attention.Tile.of_step(shape.op, shape.kv, target), **choice)
        step = compile_kernel(attention.step(shape.op, shape.kv, target, tile), level)

        @functools.cache  # not every test asks for them
        def two():
            append = compile_kernel(attention.append(shape.op, shape.kv, 1), level)
            return append, compile_kernel(attention.attend(shape.op, shape.kv, target, 1), level)

        def at_once(token):
            *_, k, v, _, _, o = step(*token.inputs, unwritten((1, 1, shape.h_q * shape.d)))
            return o.reshape(shape.h_q, shape.d), k, v

        def in_two(token):
            append, attend = two()
            q = unwritten((1, 1, shape.h_q, shape.d))
            *_, k, v, table, at, q = append(*token.inputs, q)
            o = unwritten((1, 1, shape.h_q * shape.d))
            *_, o = attend(q, k, v, table, at, LAYER, o)
            return o.reshape(shape.h_q, shape.d), k, v

        return at_once, in_two

    return make


@pytest.fixture
def say_threads():
    """`say_threads(n)`: kernels are told that the pool has so many."""
    real = tvm.get_global_func(THREADS)
    told = [real()]
    tvm_ffi.register_global_func(THREADS, lambda: told[0], override=True)
    yield lambda n: told.__setitem__(0, n)
    tvm_ffi.register_global_func(THREADS, real, override=True)


@pytest.fixture
def check(exact_attention):
    """`check(kernels, token)`: the step is exact, and all but equal to append then attend."""

    def compare(kernels, token):
        at_once, in_two = kernels
        (o, k, v), (o2, k2, v2) = at_once(token), in_two(token)
        np.testing.assert_array_equal(k, k2)
        np.testing.assert_array_equal(v, v2)
        exact, bound = token.exact(exact_attention)
        assert (np.abs(o - exact) <= bound).all()
        np.testing.assert_allclose(o, o2, rtol=0, atol=8 * EPS)  # the same steps, fused otherwise

    return compare


@pytest.mark.parametrize(
    ("h_q", "h_kv", "dtype"),
    [
        (1, 1, "float32"),
        (6, 2, "float16"),
        (5, 1, "float32"),
    ],
)
def test_query_heads_share_their_key_head(kernels, check, shape, h_q, h_kv, dtype):
    heads = shape(h_q=h_q, h_kv=h_kv, dtype=dtype)
    check(kernels(heads), Token(heads, 70))


@pytest.mark.parametrize(
    ("splits", "threads"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (2, 40), (3, 1000)]
)
def test_runs_of_pages_make_one_answer(kernels, check, shape, say_threads, splits, threads):
    """Of contexts with fewer pages than runs, too; page 16 makes many of them."""
    say_threads(threads)
    heads = shape(h_q=6, h_kv=2, page=16)
    both = kernels(heads, splits=splits)
    for length in (0, 15, 16, 63, 64, 65, 79, 80, 127, 128, 200, 319, 320, 333, 700):
        check(both, Token(heads, length))


def test_more_threads_than_cores_make_more_runs(compile_kernel, say_threads):
    """In proportion, as far as there is scratch memory; fewer threads make no fewer."""
    with v.kernel() as builder:
        found = v.argument("found", (1,), "int32")
        v.put(most_runs(2, 16), found, 0)
    kernel, runs = compile_kernel(builder.get()), []
    for threads in (1, 2, 16, 17, 24, 25, 64, 128):
        say_threads(threads)
        runs.append(int(kernel(np.zeros(1, np.int32))[0][0]))
    assert runs == [2, 2, 2, 3, 3, 4, 8, 8]


@pytest.mark.parametrize("splits", [2, 5])
def test_a_run_whose_scores_are_nothing_has_no_say(kernels, exact_attention, shape, splits):
    """What one run finds is 2**-125 or less beside what another does."""
    heads = shape(page=16)
    at_once, _ = kernels(heads, splits=splits)
    for page in (2, 25):  # in the first run, in the last
        token = Token(heads, 410)
        token.k[LAYER, token.table[page], :, 3, 5] = 3e4
        exact, bound = token.exact(exact_attention)
        assert (np.abs(at_once(token)[0] - exact) <= bound).all()


@pytest.mark.parametrize(
    ("streams", "cores", "splits", "keys"),
    [
        (1, 1, 1, 1),
        (1, 2, 1, 1),
        (1, 8, 1, 1),
        (1, 9, 2, 1),
        (1, 16, 2, 1),
        (1, 64, 8, 1),
        (4, 16, 4, 2),
        (8, 2, 1, 4),
        (8, 16, 8, 4),
        (64, 16, 8, 4),
    ],
)
def test_pages_are_split_where_cores_outnumber_tasks(shape, streams, cores, splits, keys):
    heads = shape(h_q=16, h_kv=8)
    row = find_target("cpu-x86-64-v4")
    target = msgspec.structs.replace(row, cores=cores, streams=streams)
    tile = attention.Tile.of_step(heads.op, heads.kv, target)
    assert (tile.splits, tile.key_heads) == (splits, keys)
    assert attention.Tile.space_of_step(heads.op, heads.kv, target).default == tile
    for rows in (1, None):
        of_any = attention.Tile.of(heads.op, heads.kv, target, rows)
        assert (of_any.splits, of_any.key_heads) == (1, 1)


@pytest.mark.parametrize(
    ("h_q", "h_kv", "keys"), [(16, 8, 4), (6, 6, 2), (9, 3, 1), (32, 8, 2), (96, 8, 1)]
)
def test_key_heads_side_by_side_come_out_even_and_fit_the_registers(shape, h_q, h_kv, keys):
    heads = shape(h_q=h_q, h_kv=h_kv, d=128)
    target = msgspec.structs.replace(find_target("cpu-x86-64-v4"), streams=8)
    tile = attention.Tile.of_step(heads.op, heads.kv, target)
    assert tile.key_heads == keys
    assert tile in set(attention.Tile.space_of_step(heads.op, heads.kv, target).points())


@pytest.mark.parametrize(
    ("keys", "splits", "dtype"),
    [(2, 1, "float16"), (2, 3, "float32"), (4, 1, "float32"), (4, 3, "float16")],
)
def test_key_heads_side_by_side_change_nothing(kernels, shape, keys, splits, dtype):
    """Whatever the tile else is; members of two passes, too."""
    heads = shape(h_q=8, h_kv=4, dtype=dtype)
    side_by_side, _ = kernels(heads, key_heads=keys, splits=splits, heads=1, chunks=1, vectors=1)
    alone, _ = kernels(heads, key_heads=1, splits=1)
    for length in (0, 31, 32, 127, 300):
        token = Token(heads, length)
        (o, k, v), (o1, k1, v1) = side_by_side(token), alone(token)
        np.testing.assert_array_equal(k, k1)
        np.testing.assert_array_equal(v, v1)
        np.testing.assert_allclose(o, o1, rtol=0, atol=8 * EPS)


@pytest.mark.parametrize("d", [48, 128])
def test_heads_of_any_size(kernels, check, shape, d):
    heads = shape(h_q=2, h_kv=1, d=d, dtype="float16")
    check(kernels(heads), Token(heads, 65))


@pytest.mark.parametrize("page", [16, 32, 64])
def test_over_the_ends_of_pages(kernels, check, shape, page):
    heads = shape(page=page)
    both = kernels(heads)
    for length in (0, 1, 15, 16, 17, 30, 31, 32, 33, 62, 63, 64, 65, 127, 128, 300):
        check(both, Token(heads, length))


def test_every_level_agrees(kernels, check, shape, level):
    heads = shape(dtype="float16")
    check(kernels(heads, level), Token(heads, 90))


def test_only_the_token_s_own_slot_is_written(kernels, shape):
    heads = shape(page=16)
    at_once, _ = kernels(heads)
    token = Token(heads, 37)
    _, k, v = at_once(token)
    page, slot = token.table[37 // 16], 37 % 16
    assert (k[LAYER, page, :, :, slot] != token.k[LAYER, page, :, :, slot]).any()
    k[LAYER, page, :, :, slot] = token.k[LAYER, page, :, :, slot]
    v[LAYER, page, :, slot] = token.v[LAYER, page, :, slot]
    np.testing.assert_array_equal(k, token.k)
    np.testing.assert_array_equal(v, token.v)


def test_steps_append_to_one_another(kernels, exact_attention, shape):
    """A token sees what the steps before it wrote."""
    at_once, _ = kernels(shape())
    first = Token(shape(), 31)
    _, k, v = at_once(first)
    second = Token(shape(), 32)
    second.k, second.v, second.table = k.copy(), v.copy(), first.table
    exact, bound = second.exact(exact_attention)
    assert (np.abs(at_once(second)[0] - exact) <= bound).all()


def test_what_was_in_the_slot_before_does_not_count(kernels, shape):
    heads = shape(dtype="float16")
    at_once, _ = kernels(heads)
    clean, stale = Token(heads, 64), Token(heads, 64)
    page = stale.table[64 // heads.page]
    stale.k[LAYER, page], stale.v[LAYER, page] = 6e4, 6e4
    np.testing.assert_array_equal(at_once(clean)[0], at_once(stale)[0])
