"""Attention of one token over pages, on every kind of device, against float64."""

import functools

import msgspec
import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu.attention_decode import Tiling, decode
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    ROWS,
    check_no_spills,
    device_of,
    every_row,
    simulate,
    source,
    types_of,
)
from tests.schedule.kernels.gpu.paged_cache import PAGE, Cache, attend, attention, near

HEADS = {  # h_q, h_kv, d: the rows that run them
    (4, 4, 64): ("webgpu",),
    (4, 2, 80): ROWS,  # no power of two
    (8, 2, 128): ("cuda-sm80",),
    (10, 2, 32): ("metal", "webgpu"),  # a token in two tiles
}
CASES = [
    (row, dtype, heads) for heads, rows in HEADS.items() for row in rows for dtype in types_of(row)
]


@functools.cache
def kernel(heads, dtype, device):
    return decode(attention(*heads), dtype, PAGE, device)


def run_decode(row, heads, dtype, lengths, device=None):
    """o and lse of one random token of each sequence, and what they must be."""
    a = attention(*heads)
    cache = Cache.random(a, dtype, lengths)
    batch = len(lengths)
    q = np.random.default_rng(7).standard_normal((batch, a.h_q, a.d)).astype(dtype)
    o, lse = np.full_like(q, np.nan), np.full((batch, a.h_q), np.nan, np.float32)
    unread = [np.full(batch, -1, np.int32)] * 2
    func = kernel(heads, dtype, device or device_of(row))
    numbers = (0, 1.0, 1e6, a.d**-0.5)
    launches = simulate(func, row, q, *cache.arguments(), *unread, o, lse, *numbers)
    expected = [attend(q[s : s + 1], *kept, causal=False) for s, kept in enumerate(cache.kept)]
    whole, mass = (np.concatenate(x) for x in zip(*expected, strict=True))
    return (o, lse), (whole, mass), launches


def check(result, dtype):
    (o, lse), (whole, mass), _ = result
    np.testing.assert_allclose(o, whole, **near(dtype))
    np.testing.assert_allclose(lse, mass, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(("row", "dtype", "heads"), CASES)
def test_a_token_attends_to_its_sequence(row, dtype, heads):
    """Of one part, and of several."""
    for length in (37, 300):
        check(run_decode(row, heads, dtype, [length]), dtype)


@every_row
@pytest.mark.parametrize("lengths", [[1], [16], [17], [240], [256], [5, 48, 1], [300, 5, 150]])
def test_any_length_ends_where_it_ends(row, lengths):
    """Mid-page and at a page's end, shorter and longer than a tile or a part; side by side."""
    check(run_decode(row, (4, 2, 80), "float32", lengths), "float32")


@pytest.mark.parametrize(
    ("cores", "length", "parts"), [(4, 240, 1), (4, 384, 3), (4, 1100, 4), (1, 1100, 1)]
)
def test_a_long_context_is_walked_by_two_blocks_of_every_core(cores, length, parts):
    """By fewer where each would have less than 128 tokens; one part is not joined."""
    device = msgspec.structs.replace(device_of("webgpu"), cores=cores)
    *result, launches = run_decode("webgpu", (4, 2, 64), "float32", [length], device)
    check((*result, ()), "float32")
    assert [launch.grid for launch in launches] == [(2, parts, 1), (4, 1, 1)][: 1 + (parts > 1)]


@pytest.mark.parametrize("lengths", [[17, 0], [0, 300]])
def test_a_sequence_without_tokens_gives_nothing_to_merge(lengths):
    (o, lse), *_ = run_decode("webgpu", (4, 2, 80), "float32", lengths)
    empty = lengths.index(0)
    assert not o[empty].any()
    assert (np.exp2(lse[empty] + 100) == 0).all()


def test_large_scores_do_not_overflow():
    a = attention(2, 1, 64)
    cache = Cache.random(a, "float32", [20])
    q = 300 * cache.kept[0][0][3:4].repeat(2, axis=1)
    o, lse = np.full_like(q, np.nan), np.full((1, 2), np.nan, np.float32)
    unread = [np.zeros(1, np.int32)] * 2
    func = decode(a, "float32", PAGE, device_of("webgpu"))
    simulate(func, "webgpu", q, *cache.arguments(), *unread, o, lse, 0, 1.0, 1e6, a.d**-0.5)
    np.testing.assert_allclose(o[0], cache.kept[0][1][3].repeat(2, axis=0), rtol=1e-5)


def test_each_key_is_read_once_for_all_heads_of_its_group():
    """A block has all query heads of a key head: no second block loads its pages."""
    *_, (launch,) = run_decode("cuda-sm80", (8, 2, 64), "float32", [20])
    assert launch.grid == (2, 1, 1)


@pytest.mark.parametrize("shared_bytes", [5000, 12000, 49152])
def test_less_shared_memory_means_shorter_tiles_not_other_results(shared_bytes):
    device = msgspec.structs.replace(device_of("cuda-sm80"), shared_bytes=shared_bytes, threads=64)
    *result, (launch,) = run_decode("cuda-sm80", (4, 1, 64), "float32", [70], device)
    assert launch.shared_bytes <= shared_bytes
    check((*result, ()), "float32")


@pytest.mark.parametrize("row", ["cuda-sm80", "metal", "vulkan", "vulkan-android", "webgpu"])
@pytest.mark.parametrize("heads", [(16, 8, 128), (32, 8, 128), (40, 8, 128), (64, 8, 128)])
def test_tiles_of_real_models_fit(row, heads):
    device = device_of(row)
    tiling = Tiling.of(attention(*heads), PAGE, device)
    assert tiling.teams.threads <= device.threads
    assert tiling.shared_bytes <= device.shared_bytes


@pytest.mark.parametrize("row", PRINTED)
def test_the_source_loads_vectors(row):
    text = source(row, decode(attention(16, 8, 128), "float32", PAGE, device_of(row)))
    wide = {"cuda-sm80": "*(float4*)(pages", "metal": "*(device float4*)(pages"}
    assert wide.get(row, "vec4<f32>(pages") in text


@pytest.mark.slow
def test_nothing_spills_on_cuda():
    device = device_of("cuda-sm80")
    heads = [(16, 8, 128), (32, 8, 128), (64, 8, 128)]
    check_no_spills(
        *(decode(attention(*h), t, PAGE, device) for h in heads for t in ("float16", "float32"))
    )
