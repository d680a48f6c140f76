"""Tiles of bfloat16 against float64, done by the CPU that has them, or in software.

Of other x86-64 Linux machines the very instructions run, each of which traps (`amx_trap.c`);
elsewhere, and once here too, the kernel is written without them (`emulated_tiles.py`). How far
float32 may be from what is exact, bf16_products.py says.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from mlc_compile import ops
from mlc_compile.schedule.kernels import bf16_gemm, quantize
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target

from .bf16_products import (
    BEST,
    EPS,
    HALF,
    Unit,
    activations,
    blank,
    largest_workspace,
    paired,
    products,
    rounded,
    unpaired,
)
from .emulated_tiles import EmulatedTiles

NORM_EPS = 1e-6
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 64)

DEFAULT = bf16_gemm.Tile()
with_or_without = pytest.mark.parametrize("residual", [False, True])


@dataclass
class Gemm:
    """`gemm` of one matrix."""

    matrix: object
    unit: Unit
    residual: bool = False
    tile: bf16_gemm.Tile = DEFAULT

    def __post_init__(self):
        codec, self.n = self.matrix.codec, len(self.matrix.codes)
        func = bf16_gemm.gemm(codec, self.n, self.unit.make(), self.tile, residual=self.residual)
        self.run = self.unit.compile(func)

    def __call__(self, x, base=()):
        y = np.full((1, len(x), self.n), np.nan, np.float32)
        *_, y = self.run(paired(x), *self.matrix.packed, *base, y)
        return y

    def check(self, x, random):
        shape = (1, len(x), self.n)
        base = [random.standard_normal(shape).astype(np.float32)] * self.residual
        exact, bound = products(x, self.matrix, *(b[0] for b in base))
        assert (np.abs(self(x, base)[0] - exact) <= bound).all()  # false for NaN: left unwritten


# ---- gemm -------------------------------------------------------------------------------


@with_or_without
def test_any_number_of_tokens(weights, unit, residual):
    gemm = Gemm(weights(64, 64), unit, residual)
    random = np.random.default_rng(1)
    for m in range(1, 34):
        gemm.check(activations(m, 64, random), random)


SIZES = {
    "one row and one group": (1, 32, "float16", True),
    "less than a block": (15, 64, "float32", False),
    "a ragged second block, an odd group": (17, 96, "float16", True),
    "a ragged block in a half-filled strip": (33, 160, "float32", False),
    "an odd number of blocks": (48, 32, "float16", True),
    "many groups": (112, 1024, "float16", False),
    "all at once": (97, 1056, "float32", True),
}
EMULATED = ("a ragged second block, an odd group", "all at once")


@pytest.mark.parametrize(
    ("unit", "size"),
    dict.fromkeys([*((BEST, size) for size in SIZES), *(("emulated", size) for size in EMULATED)]),
    indirect=["unit"],
)
def test_any_rows_and_groups(weights, unit, size):
    n, k, dtype, residual = SIZES[size]
    gemm = Gemm(weights(n, k, dtype), unit, residual)
    random = np.random.default_rng(2)
    for m in ROWS:
        gemm.check(activations(m, k, random), random)


def test_a_long_prompt(weights, unit):
    random = np.random.default_rng(3)
    Gemm(weights(80, 128), unit).check(activations(512, 128, random), random)


SHAPES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]
POINTS = [
    *[pytest.param(bf16_gemm.Tile(*shape), 104, True, id=f"{shape}, ragged") for shape in SHAPES],
    *[pytest.param(bf16_gemm.Tile(strips=s), 336, True, id=f"{s} strips") for s in (2, 4, 8)],
    *[pytest.param(bf16_gemm.Tile(*t), 336, True, id=f"{t}") for t in ((3, 1, 4), (1, 3, 2))],
    pytest.param(bf16_gemm.Tile(2, 2), 104, False, id="ragged, no residual"),
    pytest.param(bf16_gemm.Tile(strips=8), 336, False, id="8 strips, no residual"),
]


@pytest.mark.parametrize(("tile", "n", "residual"), POINTS)
def test_tiles_with_strips_of_one_width_give_the_same_bits(weights, unit, tile, n, residual):
    """Which strip a row of w is in decides the order of its sums, and nothing else of a tile does.

    Of 336 rows of w strips are left over, and half of one.
    """
    matrix, random = weights(n, 96), np.random.default_rng(4)
    least = bf16_gemm.Tile(m=1, blocks=tile.blocks)
    alone, other = (Gemm(matrix, unit, residual, t) for t in (least, tile))
    for m in (1, 17, 70):
        x = activations(m, 96, random)
        base = [random.standard_normal((1, m, n)).astype(np.float32)] * residual
        np.testing.assert_array_equal(other(x, base), alone(x, base))
        other.check(x, random)


@pytest.mark.parametrize(("n", "strips"), [(64, {1, 2, 4, 8}), (40, {1})])
def test_the_registers_hold_every_tile_of_a_space(weights, n, strips):
    space = bf16_gemm.Tile.space(find_target("cpu-sapphirerapids"), weights(n, 64).codec, n)
    points = list(space.points())
    assert {(t.m, t.blocks) for t in points} == set(SHAPES)
    assert {t.strips for t in points} == strips


@pytest.mark.parametrize("strips", [1, 2, 8])
def test_a_thread_unpacks_to_as_much_as_a_tile_says(strips):
    tile = bf16_gemm.Tile(strips=strips)
    codec = codec_of("q4f16_1", 512, 1024)
    func = bf16_gemm.gemm(codec, 512, EmulatedTiles(), tile, residual=False)
    assert largest_workspace(func) == tile.panel_bytes(1024)


@pytest.mark.parametrize("n", [6144, 1040])  # strips of the last panel may be fewer
def test_a_panel_is_half_of_the_cache_or_an_eighth_where_x_has_room_beside_it(n):
    """Of 2 MiB; 512 rows of x take half of it at k = 1024."""
    target = find_target("cpu-sapphirerapids")
    strips = {1024: 4, 2048: 8, 4096: 4, 8192: 2, 16384: 1, 32768: 1}
    for k, expected in strips.items():
        tile = bf16_gemm.Tile.of(target, codec_of("q4f16_1", n, k), n)
        assert tile == bf16_gemm.Tile(strips=expected)


def test_a_ragged_block_is_in_a_strip_of_its_own():
    tile = bf16_gemm.Tile.of(find_target("cpu-sapphirerapids"), codec_of("q4f16_1", 1000, 64), 1000)
    assert tile == bf16_gemm.Tile()


def test_every_code_and_extreme_scales(int4_matrix, unit):
    codes = np.tile(np.arange(16), (48, 4))
    scales = np.full((48, 2), 1.0, np.float16)
    scales[::3], scales[1::3] = np.finfo(np.float16).max, np.finfo(np.float16).smallest_subnormal
    random = np.random.default_rng(5)
    Gemm(int4_matrix(codes, scales), unit).check(activations(19, 64, random), random)


def test_a_zero_weight_row_gives_zero_or_the_residual(weights, unit):
    matrix, random = weights(33, 96), np.random.default_rng(6)
    x = activations(9, 96, random)
    assert (Gemm(matrix, unit)(x)[0, :, 16] == 0).all()
    base = random.standard_normal((1, 9, 33)).astype(np.float32)
    y = Gemm(matrix, unit, residual=True)(x, [base])
    np.testing.assert_array_equal(y[0, :, 16], base[0, :, 16])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_its_row_alone(int4_matrix, unit, bad):
    matrix = int4_matrix(np.full((40, 64), 9), np.ones((40, 2), np.float16))
    x = activations(21, 64, np.random.default_rng(7))
    x[20, 50] = bad
    y = Gemm(matrix, unit)(x)[0]
    assert not np.isfinite(y[20]).any()
    assert np.isfinite(y[:20]).all()


# ---- what is written ---------------------------------------------------------------------


@with_or_without
@pytest.mark.parametrize("n", [64, 40])
def test_a_task_configures_once_and_leaves_nothing_behind(weights, n, residual):
    unit = EmulatedTiles()
    bf16_gemm.gemm(weights(n, 64).codec, n, unit, DEFAULT, residual=residual)
    first, *between, last = unit.log
    assert (first, last) == (("configure",), ("release",))
    assert not {first, last} & set(between)
    begin = [("load" if residual else "zero", c) for c in range(4)]
    read = [("load", t) for t in (4, 5, 6, 7)]
    products = [("multiply", 2 * i + b, 4 + i, 6 + b) for i in range(2) for b in range(2)]
    assert between == [*begin, *read, *products, *(("store", c) for c in range(4))]


# ---- activations -------------------------------------------------------------------------


def inputs_of(kind, m, k, random):
    x = random.standard_normal((1, m, 2 * k if kind == "swiglu" else k))
    gammas = [random.standard_normal(k)] * (kind == "rms_norm")
    return [a.astype(np.float32) for a in (x, *gammas)]


def computed(kind, x, *gamma):
    """What the source makes of its inputs, float64 [m, k]."""
    x = x[0].astype(np.float64)
    if kind == "rms_norm":
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_EPS) * gamma[0]
    if kind == "swiglu":
        gate, up = np.split(x, 2, axis=-1)
        return gate / (1 + np.exp(-gate)) * up
    return x


@pytest.mark.parametrize("kind", ops.SOURCES)
def test_a_source_is_rounded_to_the_nearest(compile_kernel, level, kind):
    """Half a unit of 8 bits, and what its float32 may be off by."""
    run = compile_kernel(bf16_gemm.round_rows(quantize.FEEDS[kind](96, NORM_EPS)), level)
    random = np.random.default_rng(8)
    for m in (1, 7):
        inputs = inputs_of(kind, m, 96, random)
        *_, words = run(*inputs, blank(m, 96))
        exact = computed(kind, *inputs)
        assert (np.abs(unpaired(words, 96) - exact) <= (HALF + 96 * EPS) * np.abs(exact)).all()


def test_plain_numbers_are_rounded_as_said(compile_kernel):
    run = compile_kernel(bf16_gemm.round_rows(quantize.plain(64)))
    bits = np.random.default_rng(9).integers(0, 2**32, (1, 5, 64), np.uint32)
    bits[0, 0, :6] = [0x3F808000, 0xBF808000, 0x3F807FFF, 0x3F80FFFF, 0x00000001, 0x80000000]
    x = bits.view(np.float32)
    x[~np.isfinite(x)] = 1
    *_, words = run(x, blank(5, 64))
    got = unpaired(words, 64).view(np.uint32)
    np.testing.assert_array_equal(got, rounded(x[0]).view(np.uint32))
    np.testing.assert_array_equal(words, paired(rounded(x[0])))


def test_what_is_not_finite_stays_so(compile_kernel):
    run = compile_kernel(bf16_gemm.round_rows(quantize.plain(32)))
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, [1, 2, 18, 19, 20]] = np.nan, np.inf, -np.inf, -np.nan, np.finfo(np.float32).max
    *_, words = run(x, blank(1, 32))
    got = unpaired(words, 32)[0]
    assert np.isnan(got[[1, 19]]).all()
    np.testing.assert_array_equal(got[[2, 18, 20]], [np.inf, -np.inf, np.inf])
    assert (np.delete(got, [1, 2, 18, 19, 20]) == 0).all()
