"""Queries, keys and values at once on tiles: what a product and an append give, to the bit.

Each of the two is held against float64 by tests of its own.
"""

from functools import cache

import numpy as np
import pytest

from mlc_compile.schedule.kernels import attention, bf16_gemm
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target

from .bf16_products import BEST, activations, largest_workspace, paired
from .emulated_tiles import EmulatedTiles
from .flat_cache import LAYER, Cache, Pages

Heads = attention.Heads
DEFAULT = Heads()
K = 96


def width(shape):
    """Rows of w."""
    return (shape.h_q + 2 * shape.h_kv) * shape.d


class Call:
    """Inputs of m tokens that follow `length` others."""

    def __init__(self, shape, length, m):
        random = np.random.default_rng(m)
        self.m, self.cache = m, (Pages if shape.kv.scaled else Cache)(shape, length + m)
        self.x = paired(activations(m, K, random))
        turns = random.uniform(0, 7, (m, shape.d // 2))
        gammas = random.uniform(0.5, 2, (2, shape.d)).astype(np.float32)
        angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
        self.rest = (*gammas, angles, *self.cache.arrays(length), LAYER)
        self.q = np.full((1, m, shape.h_q, shape.d // 2), -1, np.int32)


@pytest.fixture
def together(unit, weights):
    """`together(shape, share)(call)`: the pages of keys, of values, and queries in pairs."""

    @cache
    def compiled(shape, share=DEFAULT):
        matrix = weights(width(shape), K)
        func = attention.project(shape.op, shape.kv, matrix.codec, unit.make(), share)
        kernel = unit.compile(func)

        def run(call):
            *_, k, v, _table, _length, q = kernel(call.x, *matrix.packed, *call.rest, call.q)
            return k, v, q

        return run

    return compiled


@pytest.fixture
def apart(unit, compile_kernel, weights):
    """`apart(shape)(call)`: the same of two kernels."""

    @cache
    def compiled(shape):
        matrix, n = weights(width(shape), K), width(shape)
        product = bf16_gemm.gemm(matrix.codec, n, unit.make(), bf16_gemm.Tile(), residual=False)
        multiply = unit.compile(product)
        append = compile_kernel(attention.append(shape.op, shape.kv, None, rounded=True))

        def run(call):
            *_, qkv = multiply(call.x, *matrix.packed, np.full((1, call.m, n), np.nan, np.float32))
            *_, k, v, _table, _length, q = append(qkv, *call.rest, call.q)
            return k, v, q

        return run

    return compiled


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_any_number_of_tokens(together, apart, shape, dtype):
    heads = shape(dtype=dtype)
    one, two = together(heads), apart(heads)
    for m in (*range(1, 34), 47, 48, 64, 65, 100, 200):
        call = Call(heads, 29, m)
        same(one(call), two(call))


@pytest.mark.parametrize(
    ("h_q", "h_kv", "d", "dtype"),
    [
        *[(1, 1, 32, "float32"), (6, 2, 64, "float16"), (6, 2, 64, "int8")],
        *[(5, 1, 96, "int8"), (2, 1, 128, "float32"), (2, 1, 128, "int8")],
    ],
)
def test_any_heads(together, apart, shape, h_q, h_kv, d, dtype):
    heads = shape(h_q=h_q, h_kv=h_kv, d=d, dtype=dtype)
    one, two = together(heads), apart(heads)
    for m, length in ((1, 0), (17, 31), (33, 32), (70, 1)):
        call = Call(heads, length, m)
        same(one(call), two(call))


@pytest.mark.parametrize(
    ("unit", "page"),
    dict.fromkeys([(BEST, 16), (BEST, 64), ("emulated", 16)]),
    indirect=["unit"],
)
def test_pages_may_be_of_any_size(together, apart, shape, page):
    heads = shape(page=page)
    one, two = together(heads), apart(heads)
    for m in (1, 20, 70):
        call = Call(heads, 15, m)
        same(one(call), two(call))


@pytest.mark.parametrize(("m", "heads"), [(1, 1), (2, 2), (1, 4)])
def test_any_share_will_do(together, shape, m, heads):
    """Of eleven heads some are left over in every share."""
    all_heads = shape(h_q=7, h_kv=2, d=64)
    default, other = together(all_heads), together(all_heads, Heads(m, heads))
    for tokens in (1, 17, 70):
        call = Call(all_heads, 5, tokens)
        same(other(call), default(call))


# ---- what is unpacked --------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 4])
def test_a_thread_unpacks_to_as_much_as_its_share_says(shape, heads):
    all_heads, share = shape(d=128), Heads(heads=heads)
    codec = codec_of("q4f16_1", width(all_heads), 1024)
    func = attention.project(all_heads.op, all_heads.kv, codec, EmulatedTiles(), share)
    assert largest_workspace(func) == share.panel_bytes(all_heads.op, 1024)


def test_a_panel_is_half_of_the_cache_or_an_eighth_where_x_has_room_beside_it(shape):
    """Of 2 MiB; 512 rows of x take half of it at k = 1024."""
    target, op = find_target("cpu-sapphirerapids"), shape(d=128).op
    found = {k: Heads.of(op, target, k).heads for k in (256, 1024, 2048, 4096, 8192)}
    assert found == {256: 4, 1024: 1, 2048: 2, 4096: 1, 8192: 1}


def test_heads_are_of_whole_groups(shape):
    heads = shape(d=48)
    codec = codec_of("q4f16_1", width(heads), K)
    with pytest.raises(AssertionError):
        attention.project(heads.op, heads.kv, codec, EmulatedTiles(), DEFAULT)


def test_a_thread_configures_once_and_leaves_nothing_behind(shape):
    unit = EmulatedTiles()
    codec = codec_of("q4f16_1", width(shape()), K)
    attention.project(shape().op, shape().kv, codec, unit, DEFAULT)
    first, *between, last = unit.log
    assert (first, last) == (("configure",), ("release",))
    begin = [("zero", c) for c in range(4)]
    read = [("load", t) for t in (4, 5, 6, 7)]
    products = [("multiply", 2 * i + b, 4 + i, 6 + b) for i in range(2) for b in range(2)]
    assert between == [*begin, *read, *products, *(("store", c) for c in range(4))]
