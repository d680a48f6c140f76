"""RoPE, and what goes in and out of pages, on every kind of device."""

import functools
import itertools

import numpy as np
import pytest

from mlc_compile.schedule.kernels.gpu import attention_pages
from mlc_compile.schedule.kernels.gpu.attention import paged_kv_kernels
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    ROWS,
    check_no_spills,
    device_of,
    every_row,
    simulate,
    source,
)
from tests.schedule.kernels.gpu.paged_cache import PAGE, attention

HEADS = [(4, 4, 64), (4, 2, 80), (8, 2, 128)]


def dtypes(row):
    return ("float32", "float16") if device_of(row).f16 else ("float32",)


def turned(x, positions, a):
    angle = positions[:, None] * np.array(a.inv_freq)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotate(row, a, dtype, qkv, positions, turn=1):
    outs = [np.full((len(qkv), n, a.d), np.nan, dtype) for n in (a.h_q, a.h_kv, a.h_kv)]
    func = rotation((a.h_q, a.h_kv, a.d), dtype, row)
    simulate(func, row, qkv, positions, *outs, turn)
    return outs, np.split(qkv, [a.h_q, a.h_q + a.h_kv], axis=1)


@functools.cache
def rotation(heads, dtype, row):
    return attention_pages.rotate(attention(*heads), dtype, device_of(row))


@pytest.mark.parametrize(
    ("row", "heads"),
    [*((row, HEADS[0]) for row in ROWS), *zip(ROWS, itertools.cycle(HEADS[1:]), strict=False)],
)
def test_q_and_k_are_turned_by_their_position(row, heads):
    a = attention(*heads)
    for dtype, m in itertools.product(dtypes(row), (1, 5)):
        random = np.random.default_rng(m)
        qkv = random.standard_normal((m, a.h_q + 2 * a.h_kv, a.d)).astype(dtype)
        positions = random.integers(0, 100, m).astype(np.int32)
        outs, ins = rotate(row, a, dtype, qkv, positions)
        # A frequency is off by 4 eps and so an angle by 100 times that; a result is rounded.
        bound = 1e-4 if dtype == "float32" else 2e-3
        for out, x in zip(outs[:2], ins[:2], strict=True):
            np.testing.assert_allclose(out, turned(x, positions, a), rtol=bound, atol=bound)
        np.testing.assert_array_equal(outs[2], ins[2])


@pytest.mark.parametrize("row", ["metal"])
def test_late_positions_turn_as_the_rounding_of_a_frequency_allows(row):
    """It is a float32, off by some eps, and so is an angle of 40959 times as much, but no more."""
    a = attention(2, 1, 128)
    qkv = np.random.default_rng(0).standard_normal((64, 4, 128)).astype(np.float32)
    positions = np.linspace(0, 40959, 64).astype(np.int32)
    outs, ins = rotate(row, a, "float32", qkv, positions)
    bound = 4 * 40960 * np.finfo(np.float32).eps
    np.testing.assert_allclose(outs[0], turned(ins[0], positions, a), atol=bound)


def test_nothing_is_turned_unless_asked():
    a = attention(4, 2, 64)
    qkv = np.random.default_rng(0).standard_normal((3, 8, 64)).astype(np.float32)
    outs, ins = rotate("webgpu", a, "float32", qkv, np.arange(3, dtype=np.int32), turn=0)
    for out, x in zip(outs, ins, strict=True):
        np.testing.assert_array_equal(out, x)


@every_row
@pytest.mark.parametrize("heads", HEADS)
def test_pages_take_tokens_where_they_are_told_and_nowhere_else(row, heads):
    a, random = attention(*heads), np.random.default_rng(0)
    for dtype in dtypes(row):
        pages = random.standard_normal((3, 2, a.h_kv, PAGE, a.d)).astype(dtype)
        k, v = random.standard_normal((2, 5, a.h_kv, a.d)).astype(dtype)
        slots = np.array([17, -1, 0, 47, 16], np.int32)
        expected = pages.copy()
        for i, slot in enumerate(slots):
            if slot >= 0:
                expected[slot // PAGE, 0, :, slot % PAGE] = k[i]
                expected[slot // PAGE, 1, :, slot % PAGE] = v[i]
        func = attention_pages.append(a, dtype, PAGE, device_of(row))
        simulate(func, row, pages, k, v, slots)
        np.testing.assert_array_equal(pages, expected)


@every_row
@pytest.mark.parametrize("count", [1, 7, 16])
def test_the_beginning_of_a_page_is_copied(row, count):
    a = attention(4, 2, 80)
    pages = np.random.default_rng(0).standard_normal((4, 2, 2, PAGE, 80)).astype(np.float32)
    expected = pages.copy()
    expected[1, :, :, :count] = expected[3, :, :, :count]
    func = attention_pages.copy_page(a, "float32", PAGE, device_of(row))
    simulate(func, row, pages, 3, 1, count)
    np.testing.assert_array_equal(pages, expected)


@every_row
def test_moves_of_a_sequence_happen_in_order(row):
    a = attention(4, 2, 64)
    pages = np.random.default_rng(0).standard_normal((4, 2, 2, PAGE, 64)).astype(np.float32)
    expected = pages.copy()
    moves = np.array([[3, 4, 40, 60], [2, 3, 39, 41]], np.int32)  # 4 goes where 3 came from
    for source_slot, sink in moves.T:
        value = expected[source_slot // PAGE, :, :, source_slot % PAGE].copy()
        expected[sink // PAGE, :, :, sink % PAGE] = value
    func = attention_pages.compact(a, "float32", PAGE, device_of(row))
    simulate(func, row, pages, np.array([0, 2, 2, 4], np.int32), moves, 3)
    np.testing.assert_array_equal(pages, expected)


@every_row
def test_tokens_can_be_read_back(row):
    a = attention(4, 2, 64)
    pages = np.random.default_rng(0).standard_normal((4, 2, 2, PAGE, 64)).astype(np.float32)
    slots = np.array([5, 63, 16], np.int32)
    sinks = [np.zeros((2, 3, 2, 64), np.float32) for _ in range(2)]
    func = attention_pages.read_back(a, 2, "float32", PAGE, device_of(row))
    simulate(func, row, pages, slots, *sinks, 1)
    for side, sink in enumerate(sinks):
        expected = [pages[s // PAGE, side, :, s % PAGE] for s in slots]
        np.testing.assert_array_equal(sink[1], expected)
        assert not sink[0].any()


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_all_kernels_of_a_cache(row):
    device = device_of(row)
    dtype = "float16" if device.f16 else "float32"
    kernels = paged_kv_kernels(attention(16, 8, 128), 28, dtype=dtype, page=PAGE, device=device)
    text = source(row, *kernels.values())
    assert all(f"kernel_{i}" in text for i in range(len(kernels)))


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_nothing_spills_on_cuda(dtype):
    """All kernels of 0.6B's cache."""
    a, device = attention(16, 8, 128), device_of("cuda-sm80")
    check_no_spills(*paged_kv_kernels(a, 28, dtype=dtype, page=PAGE, device=device).values())
