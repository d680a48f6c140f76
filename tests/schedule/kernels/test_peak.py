"""The peak's tiles add up what they read, every step of it, in every arithmetic."""

import numpy as np
import pytest

from mlc_compile.schedule.kernels import peak
from mlc_compile.schedule.kernels.dot import dot_for
from mlc_compile.target import find_target

from .emulated_tiles import EmulatedTiles

TILE = peak.Sums(2, 2)


@pytest.fixture
def short(monkeypatch):
    """Few rounds: float32 sums of many would be off by more than is telling."""
    monkeypatch.setattr(peak, "ROUNDS", 2)
    monkeypatch.setattr(peak, "TASKS", 3)


def test_floats(compile_kernel, short):
    random = np.random.default_rng(0)
    x = random.standard_normal((peak.DEPTH, 2)).astype(np.float32)
    w = random.standard_normal((peak.DEPTH, 2, 16)).astype(np.float32)
    y = np.full((3, 4, 16), np.nan, np.float32)
    got = compile_kernel(peak.peak(TILE, None))(x, w, y)[-1]
    want = peak.ROUNDS * np.einsum("sr,sbl->rbl", x, w).reshape(4, 16)
    # 256 roundings of sums of some tens.
    np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), atol=1e-3)


def test_integers(compile_kernel, short):
    cpu = find_target("cpu")
    dot = dot_for(cpu)
    if dot is None:
        pytest.skip("this CPU has no int8 dot product")
    random = np.random.default_rng(0)
    x = random.integers(-127, 128, (peak.DEPTH, 2, 4), np.int8)
    w = random.integers(0, 16, (peak.DEPTH, 2, 16, 4), np.int8)
    y = np.full((3, 4, 16), np.nan, np.float32)
    run = compile_kernel(peak.peak(TILE, dot))
    got = run(x.view(np.int32)[..., 0], w.view(np.int32)[..., 0], y)[-1]
    pairs = (a.reshape(*a.shape[:-1], 2, 2).astype(int) for a in (x, w))
    want = peak.ROUNDS * np.einsum("srpk,sblpk->rblp", *pairs)
    if dot.widen is not None:
        want = want.astype(np.int16)  # its sums wrap
    want = want.sum(axis=-1, dtype=int).reshape(4, 16)
    np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


def test_tiles(compile_kernel, short):
    random = np.random.default_rng(0)
    pairs = random.integers(-3, 4, (2, 2, 16, 16, 2)).astype(np.float32)  # bfloat16 as they are
    words = (pairs.view(np.uint32) >> 16).astype(np.uint16).view(np.int32)[..., 0]
    y = np.full((3, 4, 16, 16), np.nan, np.float32)
    got = compile_kernel(peak.tile_peak(TILE, EmulatedTiles()))(*words, y)[-1]
    want = np.einsum("rmph,bpnh->rbmn", *pairs).reshape(4, 16, 16) * peak.ROUNDS * peak.DEPTH
    np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


def test_every_tile_counts_what_it_adds():
    assert peak.Sums(6, 2).products == 3 * peak.Sums(2, 2).products
