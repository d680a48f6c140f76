"""gemv for every kind of device, interpreted, against float64 on the values of the weights."""

import numpy as np
import pytest

from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu.gemv import gemv
from mlc_compile.schedule.kernels.gpu.gemv_tile import BUSY, Tile
from mlc_compile.schedule.kernels.gpu.slots import Source
from mlc_compile.target import Device
from tests.schedule.kernels.gpu.emission import device_of, every_row
from tests.schedule.kernels.gpu.products import EPS, JOINS, Case

RMS = 1e-6

every_join = pytest.mark.parametrize("row", JOINS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)

TILES = [
    pytest.param(Tile(lanes=32, teams=2, rows=2, depth=1), id="a warp a team"),
    pytest.param(Tile(lanes=8, teams=8, rows=4, depth=3), id="four teams a warp, stages"),
    pytest.param(Tile(lanes=1, teams=32, rows=1, depth=2), id="nothing to join"),
]


def normalized(case: Case, x: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x gamma, exactly, and 1 / rms(x)."""
    x = x.astype(np.float64)
    factor = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + RMS)
    return x * gamma, factor


@every_row
@every_scheme
@pytest.mark.parametrize(("n", "k"), [(33, 96), (60, 1056)])
def test_gemv_multiplies_by_the_stored_values(row, scheme, n, k):
    case = Case(scheme, n, k)
    x = case.normal(1, 1, k)
    y = case.run(gemv(case.codec, n, device_of(row)), x)
    case.product(x).check(y)


@every_join
@pytest.mark.parametrize("scheme", ["q0f16", "q0f32"])
@pytest.mark.parametrize("k", [1, 65, 70, 36])
def test_rows_of_dense_weights_may_begin_anywhere(row, scheme, k):
    case = Case(scheme, 9, k)
    x = case.normal(1, 1, k)
    case.product(x).check(case.run(gemv(case.codec, 9, device_of(row)), x))


@every_join
@every_scheme
@pytest.mark.parametrize("tile", TILES)
def test_any_tile_gives_the_product(row, scheme, tile):
    case = Case(scheme, 37, 288)
    x = case.normal(1, 1, case.k)
    y = case.run(gemv(case.codec, case.n, device_of(row), tile=tile), x)
    case.product(x).check(y)


@every_join
@pytest.mark.parametrize("scheme", ["q4f16_1", "q0f32"])
def test_x_may_be_float16(row, scheme):
    case = Case(scheme, 20, 64)
    x = case.normal(1, 1, case.k, dtype="float16")
    y = case.run(gemv(case.codec, case.n, device_of(row), x_dtype="float16"), x)
    case.product(x).check(y)


@every_join
@every_scheme
def test_a_residual_is_added(row, scheme):
    case = Case(scheme, 50, 96)
    x, residual = case.normal(1, 1, case.k), case.normal(1, 1, case.n)
    y = case.run(gemv(case.codec, case.n, device_of(row), residual=True), x, after=(residual,))
    case.product(x).plus(residual).check(y)


@every_join
@pytest.mark.parametrize("scheme", ["q4f16_1", "q0f32"])
@pytest.mark.parametrize("tile", [None, *TILES])
def test_swiglu_joins_the_halves(row, scheme, tile):
    case = Case(scheme, 74, 96)
    x = case.normal(1, 1, case.k)
    y = case.run(gemv(case.codec, case.n, device_of(row), swiglu=True, tile=tile), x)
    case.product(x).swiglu().check(y)


@every_join
def test_swiglu_of_large_gates_is_finite(row):
    case = Case("q4f16_1", 8, 32)
    x = 100 * case.normal(1, 1, case.k)
    y = case.run(gemv(case.codec, case.n, device_of(row), swiglu=True), x)
    with np.errstate(over="ignore"):
        case.product(x).swiglu().check(y)


@every_join
@pytest.mark.parametrize("scheme", ["q4f16_1", "q0f32"])
@pytest.mark.parametrize("tile", [None, *TILES])
def test_rms_norm_goes_before_the_product(row, scheme, tile):
    """The factor is off by half the k + 3 roundings of the mean, and by two of its own."""
    case = Case(scheme, 37, 288)
    x, gamma = 3 * case.normal(1, 1, case.k), case.normal(case.k)
    weighed, factor = normalized(case, x, gamma)
    func = gemv(case.codec, case.n, device_of(row), source=Source(RMS), tile=tile)
    share = ((case.k + 3) / 2 + 2) * EPS
    near = case.product(weighed).scaled(factor, share + EPS)  # x gamma is rounded once
    near.check(case.run(func, x, gamma))


@every_row
def test_all_slots_at_once(row):
    case = Case("q4f16_1", 64, 160)
    x, gamma = case.normal(1, 1, case.k), case.normal(case.k)
    residual = case.normal(1, 1, case.n // 2)
    func = gemv(case.codec, case.n, device_of(row), source=Source(RMS), residual=True, swiglu=True)
    weighed, factor = normalized(case, x, gamma)
    near = case.product(weighed).scaled(factor, case.k * EPS).swiglu().plus(residual)
    near.check(case.run(func, x, gamma, after=(residual,)))


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_grid_beyond_the_device_is_folded(blocks):
    device = Device(threads=64, shared_bytes=16384, f16=False, int8=False, grid=blocks)
    case = Case("q4f32_1", 333, 64)  # 11 blocks of 32 outputs
    x = case.normal(1, 1, case.k)
    case.product(x).check(case.run(gemv(case.codec, case.n, device), x))


def test_a_large_gpu_is_kept_busy_whatever_the_shape():
    """Tiles for the matrices of 0.6B: at least half of BUSY threads, or one output a team."""
    for n, k in [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)]:
        tile = Tile.of(device_of("cuda-sm80"), Case("q4f16_1", n, k).codec, n)
        assert tile.rows == 1 or n * tile.lanes // tile.rows >= BUSY
        assert (k // 32) % tile.lanes == 0  # no thread idles in the last round
