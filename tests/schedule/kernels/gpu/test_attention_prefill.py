"""Attention of many tokens, over each other and over pages, on every kind of device."""

import functools

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.attention_prefill import method_for, paged, ragged
from mlc_compile.schedule.kernels.gpu.attention_tile import Tiles
from mlc_compile.schedule.kernels.gpu.attention_tiling import Tiling
from mlc_compile.schedule.kernels.gpu.attention_warps import Warps
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    ROWS,
    check_no_spills,
    device_of,
    simulate,
    source,
    types_of,
)
from tests.schedule.kernels.gpu.paged_cache import PAGE, Cache, attend, attention, near

HEADS = {
    "a key head a query head": (4, 4, 64),
    "two query heads, no power of two": (4, 2, 80),
    "four query heads": (4, 1, 128),
    "five query heads: a token is in two tiles": (5, 1, 32),
}
WARPS, TILES = ("cuda-sm80", "float16"), ("webgpu", "float32")
METHODS = {"on tensor cores": WARPS, "without": TILES}
# Tiles elsewhere are larger, and hold other elements; the code is the same.
ELSEWHERE = [(row, dtype) for row in ROWS for dtype in types_of(row)]
ELSEWHERE = [place for place in ELSEWHERE if place not in (WARPS, TILES)]

by_either_method = pytest.mark.parametrize(
    ("row", "dtype"), [pytest.param(*place, id=name) for name, place in METHODS.items()]
)
every_head = pytest.mark.parametrize(
    ("row", "dtype", "heads"),
    [
        *(
            pytest.param(*place, heads, id=f"{name}, {method}")
            for method, place in METHODS.items()
            for name, heads in HEADS.items()
        ),
        *(pytest.param(*place, (4, 2, 80), id=" ".join(place)) for place in ELSEWHERE),
    ],
)


class Queries:
    """Random queries of sequences, and room for what they get."""

    def __init__(self, a, dtype, lengths):
        self.indptr = np.cumsum([0, *lengths]).astype(np.int32)
        m = int(self.indptr[-1])
        random = np.random.default_rng(m)
        self.q = random.standard_normal((m, a.h_q, a.d)).astype(dtype)
        self.k, self.v = random.standard_normal((2, m, a.h_kv, a.d)).astype(dtype)
        self.o = np.full_like(self.q, np.nan)
        self.lse = np.full((m, a.h_q), np.nan, np.float32)
        self.unread = {
            "q_rope_position": np.full(m, -1, np.int32),
            "k_rope_offset": np.full(len(lengths), -1, np.int32),
        }
        self.scale = a.d**-0.5
        self.dtype = dtype

    def rows(self):
        return [slice(*ends) for ends in zip(self.indptr, self.indptr[1:], strict=False)]

    def results(self, causal):
        return (self.o, self.lse, int(causal), 0, 1.0, 1e6, self.scale)

    def check(self, sequence_keys, *, causal):
        for rows, (k, v) in zip(self.rows(), sequence_keys, strict=True):
            whole, mass = attend(self.q[rows], k, v, causal=causal)
            np.testing.assert_allclose(self.o[rows], whole, **near(self.dtype))
            np.testing.assert_allclose(self.lse[rows], mass, rtol=3e-6, atol=3e-6)


@functools.cache
def ragged_kernel(a, dtype, device):
    return ragged(a, dtype, device)


@functools.cache
def paged_kernel(a, dtype, device):
    return paged(a, dtype, PAGE, device)


def run_ragged(row, a, dtype, lengths, *, causal=True):
    it = Queries(a, dtype, lengths)
    arguments = [it.q, it.indptr, it.k, it.v, it.indptr, *it.unread.values()]
    func = ragged_kernel(a, dtype, device_of(row))
    launches = simulate(func, row, *arguments, *it.results(causal))
    it.check([(it.k[rows], it.v[rows]) for rows in it.rows()], causal=causal)
    return launches


def run_paged(row, a, dtype, lengths, before, *, causal=False):
    it, cache = Queries(a, dtype, lengths), Cache.random(a, dtype, before)
    unread = reversed(it.unread.values())
    func = paged_kernel(a, dtype, device_of(row))
    arguments = [it.q, it.indptr, *cache.arguments(), *unread]
    simulate(func, row, *arguments, *it.results(causal))
    it.check(cache.kept, causal=causal)


@every_head
def test_tokens_attend_to_those_before_them(row, dtype, heads):
    run_ragged(row, attention(*heads), dtype, [33])


@every_head
def test_tokens_attend_to_all_pages(row, dtype, heads):
    run_paged(row, attention(*heads), dtype, [5], [37])


@by_either_method
@pytest.mark.parametrize("lengths", [[1], [2], [70], [3, 1, 40]])
def test_any_number_of_tokens(row, dtype, lengths):
    run_ragged(row, attention(4, 2, 64), dtype, lengths)


@by_either_method
@pytest.mark.parametrize(
    ("lengths", "before"), [([1], [1]), ([2, 33], [16, 49]), ([9], [64]), ([5], [129])]
)
def test_pages_end_anywhere(row, dtype, lengths, before):
    run_paged(row, attention(4, 2, 64), dtype, lengths, before)


@pytest.mark.parametrize(("row", "dtype"), ELSEWHERE)
def test_several_sequences_have_tiles_of_their_own(row, dtype):
    run_ragged(row, attention(4, 2, 64), dtype, [70, 1, 40])
    run_paged(row, attention(4, 2, 64), dtype, [2, 33], [16, 49])


def test_a_tile_sees_keys_of_several_tiles():
    run_ragged("cuda-sm80", attention(2, 1, 128), "float16", [200])


def test_pages_may_hold_the_tokens_themselves():
    run_paged("webgpu", attention(4, 2, 64), "float32", [7], [40], causal=True)


def test_without_causality_all_keys_are_seen():
    run_ragged("webgpu", attention(4, 2, 64), "float32", [21], causal=False)


@by_either_method
def test_a_sequence_without_pages_gets_a_zero_that_weighs_nothing(row, dtype):
    a = attention(4, 2, 64)
    it, cache = Queries(a, dtype, [3, 2]), Cache.random(a, dtype, [0, 5])
    func = paged_kernel(a, dtype, device_of(row))
    arguments = [it.q, it.indptr, *cache.arguments(), *reversed(it.unread.values())]
    simulate(func, row, *arguments, *it.results(causal=False))
    assert (it.o[:3] == 0).all()
    assert (it.lse[:3] < -1e9).all()
    whole, _ = attend(it.q[3:], *cache.kept[1], causal=False)
    np.testing.assert_allclose(it.o[3:], whole, **near(dtype))


@by_either_method
def test_tokens_that_see_no_key_beside_some_that_do_get_the_same(row, dtype):
    a = attention(4, 2, 64)
    it, cache = Queries(a, dtype, [7]), Cache.random(a, dtype, [4])
    func = paged_kernel(a, dtype, device_of(row))
    arguments = [it.q, it.indptr, *cache.arguments(), *reversed(it.unread.values())]
    simulate(func, row, *arguments, *it.results(causal=True))
    assert (it.o[:3] == 0).all()
    assert (it.lse[:3] < -1e9).all()
    whole, _ = attend(it.q[3:], *cache.kept[0], causal=True)
    np.testing.assert_allclose(it.o[3:], whole, **near(dtype))


@pytest.mark.parametrize(
    ("row", "dtype", "d", "warps"),
    [
        ("cuda-sm80", "float16", 128, True),
        ("cuda-multi", "float16", 16, True),
        ("cuda-sm80", "float16", 72, False),  # no whole products
        ("cuda-sm80", "float16", 256, False),  # more than registers hold
        ("cuda-sm80", "float32", 128, False),
        ("metal", "float16", 128, False),
    ],
)
def test_tensor_cores_are_for_float16_heads_that_fit(row, dtype, d, warps):
    method = method_for(attention(4, 2, d), dtype, device_of(row))
    assert type(method) is (Warps if warps else Tiles)


@pytest.mark.parametrize("row", ["cuda-sm80", "metal", "vulkan", "vulkan-android", "webgpu"])
@pytest.mark.parametrize("heads", [(16, 8, 128), (40, 8, 128), (4, 2, 64), (4, 2, 256)])
def test_tiles_of_real_models_fit(row, heads):
    device = device_of(row)
    tiling = Tiling.of(attention(*heads), "float16" if device.f16 else "float32", device)
    assert tiling.threads <= device.threads
    assert tiling.shared_bytes <= device.shared_bytes


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_them(row):
    a, device = attention(16, 8, 128), device_of(row)
    dtype = "float16" if device.f16 else "float32"
    printed = source(row, ragged(a, dtype, device), paged(a, dtype, PAGE, device))
    assert "exp2" in printed
    assert ("mma.sync" in printed) == (row == "cuda-sm80")


@pytest.mark.slow
def test_nothing_spills_on_cuda():
    device = device_of("cuda-sm80")
    funcs = []
    for heads in ((16, 8, 128), (32, 8, 128), (4, 2, 64)):
        for dtype in ("float16", "float32"):
            a = attention(*heads)
            funcs += [ragged(a, dtype, device), paged(a, dtype, PAGE, device)]
    check_no_spills(*funcs)
