"""gemv, gemm and take against float64 on the values that the weights stand for.

Every comparison uses the classical bound for a sum of k products in float32, in any order:
|error| <= (k + 2) eps sum |x| |w| (Higham, 2002, section 3.1; 2 more for the scale and the
last rounding). It grows with the data, so nothing is hidden by a loose constant.
"""

import numpy as np
import pytest

from mlc_compile.layout import LAYOUTS
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels import embedding, matmul
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target

ROWS16 = LAYOUTS["rows16"]
EPS = np.finfo(np.float32).eps

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


class Case:
    """w[n, k] under a scheme: packed as the library gets it, and its exact values."""

    def __init__(self, scheme: str, n: int, k: int) -> None:
        self.random = np.random.default_rng([n, k])
        w = self.random.standard_normal((n, k)).astype(np.float32)
        w[n // 2] = 0  # groups whose scale is 0
        parts = SCHEMES[scheme].encode(w)
        self.n, self.k = n, k
        self.w = SCHEMES[scheme].decode(parts).astype(np.float64)
        self.packed = list(ROWS16.pack(parts).values())
        self.codec = codec_of(scheme, n, k)

    def x(self, m: int) -> np.ndarray:
        return self.random.standard_normal((1, m, self.k)).astype(np.float32)

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        exact = x.astype(np.float64) @ self.w.T
        bound = (self.k + 2) * EPS * (np.abs(x).astype(np.float64) @ np.abs(self.w).T)
        assert y.shape == exact.shape
        assert (np.abs(y - exact) <= bound).all()  # also false for NaN: a row left unwritten


def gemm(case, level):
    target = find_target(level)
    return matmul.gemm(case.codec, case.n, matmul.Tile.of(target, case.codec))


@every_scheme
@pytest.mark.parametrize(("n", "k"), [(16, 32), (40, 96), (33, 128)])
def test_gemv_multiplies_by_the_stored_values(compile_kernel, unwritten, scheme, n, k):
    case = Case(scheme, n, k)
    x = case.x(1)
    *_, y = compile_kernel(matmul.gemv(case.codec, n))(x, *case.packed, unwritten((1, 1, n)))
    case.check(x, y)


@every_scheme
def test_gemm_multiplies_by_the_stored_values_on_every_level(
    compile_kernel, unwritten, scheme, level
):
    case = Case(scheme, 32, 64)
    run = compile_kernel(gemm(case, level), level)
    for m in (1, 2, 5, 12, 33):
        x = case.x(m)
        *_, y = run(x, *case.packed, unwritten((1, m, case.n)))
        case.check(x, y)


@pytest.mark.parametrize("scheme", ["q0f16", "q4f16_1"])
def test_gemm_takes_any_number_of_tokens(compile_kernel, unwritten, scheme):
    case = Case(scheme, 48, 32)  # 3 blocks: no pairs of them
    run = compile_kernel(gemm(case, "cpu"))
    for m in range(1, 34):
        x = case.x(m)
        *_, y = run(x, *case.packed, unwritten((1, m, case.n)))
        case.check(x, y)


@pytest.mark.parametrize("scheme", ["q0f32", "q4f16_1"])
@pytest.mark.parametrize("n", [1, 31])
def test_gemm_leaves_out_the_padded_rows(compile_kernel, unwritten, scheme, n):
    case = Case(scheme, n, 32)
    run = compile_kernel(gemm(case, "cpu"))
    for m in (1, 3, 26):
        x = case.x(m)
        *_, y = run(x, *case.packed, unwritten((1, m, n)))
        case.check(x, y)


@pytest.mark.parametrize("scheme", ["q0f32", "q4f32_1"])
@pytest.mark.parametrize("n", [16, 18])
def test_gemm_adds_up_over_panels(compile_kernel, unwritten, monkeypatch, scheme, n):
    monkeypatch.setattr(matmul, "PANEL_K", 64)
    case = Case(scheme, n, 192)
    assert matmul.Tile.of(find_target("cpu"), case.codec).k == 64  # three of them
    run = compile_kernel(gemm(case, "cpu"))
    for m in (1, 5, 30):
        x = case.x(m)
        *_, y = run(x, *case.packed, unwritten((1, m, n)))
        case.check(x, y)


@pytest.mark.parametrize("k", [1, 6, 20, 48])
def test_columns_need_not_be_whole_groups_when_unquantized(compile_kernel, unwritten, k):
    case = Case("q0f32", 16, k)
    for func, m in ((matmul.gemv(case.codec, 16), 1), (gemm(case, "cpu"), 7)):
        x = case.x(m)
        *_, y = compile_kernel(func)(x, *case.packed, unwritten((1, m, 16)))
        case.check(x, y)


@pytest.mark.parametrize(
    "preset", ["cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4", "cpu-apple-m1"]
)
def test_a_tile_fits_the_registers(preset):
    target, codec = find_target(preset), Case("q4f16_1", 64, 32).codec
    tile = matmul.Tile.of(target, codec)
    vectors = 16 // min(16, target.f32_lanes)  # registers of 16 float32
    sums = tile.m * tile.blocks * vectors
    assert tile.m >= 1
    assert target.vector_registers / 2 < sums <= target.vector_registers * 3 / 4


@every_scheme
def test_take_gives_the_stored_rows_exactly(compile_kernel, unwritten, scheme):
    case = Case(scheme, 37, 64)
    ids = np.array([0, 36, 5, 36, 16, 15, 18], np.int32)
    run = compile_kernel(embedding.take(case.codec))
    *_, y = run(ids, *case.packed, unwritten((len(ids), case.k)))
    # One product of a small integer and the scale: the decoder rounds it once too.
    np.testing.assert_array_equal(y, case.w[ids].astype(np.float32))


@pytest.mark.parametrize("scheme", ["q0f16", "q4f16_1"])
@pytest.mark.parametrize("n", [16, 18])
def test_a_residual_is_what_the_sums_begin_with(compile_kernel, unwritten, monkeypatch, scheme, n):
    monkeypatch.setattr(matmul, "PANEL_K", 64)
    case = Case(scheme, n, 192)
    tile = matmul.Tile.of(find_target("cpu"), case.codec)
    gemv = compile_kernel(matmul.gemv(case.codec, n, residual=True))
    many = compile_kernel(matmul.gemm(case.codec, n, tile, residual=True))
    for run, m in ((gemv, 1), (many, 1), (many, 5), (many, 30)):
        x = case.x(m)
        base = case.random.standard_normal((1, m, n)).astype(np.float32)
        *_, y = run(x, *case.packed, base, unwritten((1, m, n)))
        exact = x.astype(np.float64) @ case.w.T
        bound = (
            (case.k + 3) * EPS * (np.abs(x).astype(np.float64) @ np.abs(case.w).T + np.abs(base))
        )
        assert (np.abs(y - (exact + base)) <= bound).all()


def check_norm(case, x, gamma, eps, y, base=0.0):
    """y is the norm of x times w, by float64, within the bound of a product of k + 1 factors.

    Two roundings more than a plain product: gamma's and the factor's multiplication. The factor
    is off by half the relative error of its sum of k squares, all positive, and some roundings:
    (k + 8) eps, and as the sums' own bound it multiplies sum |x gamma| |w|.
    """
    wide = x.astype(np.float64)
    factor = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)
    weighed = wide * gamma.astype(np.float64)
    exact = weighed @ case.w.T * factor + base
    size = np.abs(weighed) @ np.abs(case.w).T * factor + np.abs(base)
    assert y.shape == exact.shape
    assert (np.abs(y - exact) <= (2 * case.k + 12) * EPS * size).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_norm_commutes_with_the_product_whatever_the_shape(
    compile_kernel, unwritten, monkeypatch, seed
):
    """Random shapes: columns in one panel and several, rows of w padded, one block and many."""
    random = np.random.default_rng(seed)
    scheme = list(SCHEMES)[seed % len(SCHEMES)]
    k, n = 32 * int(random.integers(1, 9)), int(random.integers(1, 100))
    if scheme.startswith("q0"):
        k -= int(random.integers(0, 32))
    eps, residual = float(10.0 ** random.uniform(-8, 0)), bool(random.integers(2))
    monkeypatch.setattr(matmul, "PANEL_K", int(random.choice([32, 64, 1024])))
    case = Case(scheme, n, k)
    tile = matmul.Tile.of(find_target("cpu"), case.codec)
    one = compile_kernel(matmul.gemv(case.codec, n, eps=eps, residual=residual))
    many = compile_kernel(matmul.gemm(case.codec, n, tile, eps=eps, residual=residual))
    gamma = random.standard_normal(k).astype(np.float32)
    for run, m in ((one, 1), (many, 1), (many, int(random.integers(2, 40)))):
        x = case.x(m) * np.float32(10.0 ** random.uniform(-3, 3))
        base = random.standard_normal((1, m, n)).astype(np.float32)
        given = [base] if residual else []
        *_, y = run(x, gamma, *case.packed, *given, unwritten((1, m, n)))
        check_norm(case, x, gamma, eps, y, base if residual else 0.0)


@pytest.mark.parametrize("scheme", ["q0f16", "q4f16_1"])
def test_a_norm_commutes_with_the_product_on_every_level(compile_kernel, unwritten, scheme, level):
    case = Case(scheme, 48, 192)
    tile = matmul.Tile.of(find_target(level), case.codec)
    one = compile_kernel(matmul.gemv(case.codec, 48, eps=1e-6), level)
    many = compile_kernel(matmul.gemm(case.codec, 48, tile, eps=1e-6), level)
    gamma = case.random.standard_normal(192).astype(np.float32)
    for run, m in ((one, 1), (many, 1), (many, 13), (many, 300)):
        x = case.x(m)
        *_, y = run(x, gamma, *case.packed, unwritten((1, m, 48)))
        check_norm(case, x, gamma, 1e-6, y)


def test_the_norm_of_a_row_of_zeros_is_zero(compile_kernel, unwritten):
    """The epsilon keeps it finite."""
    case = Case("q0f32", 16, 32)
    tile = matmul.Tile.of(find_target("cpu"), case.codec)
    x, gamma = np.zeros((1, 1, 32), np.float32), np.ones(32, np.float32)
    for func in (
        matmul.gemv(case.codec, 16, eps=1e-6),
        matmul.gemm(case.codec, 16, tile, eps=1e-6),
    ):
        *_, y = compile_kernel(func)(x, gamma, *case.packed, unwritten((1, 1, 16)))
        np.testing.assert_array_equal(y, np.zeros((1, 1, 16)))
