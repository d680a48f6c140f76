"""Groups of 128: INT4 weights as int8 of one scale, against exact sums of the same integers."""

import numpy as np
import pytest

from mlc_compile.layout import GROUP, WIDE
from mlc_compile.ops import NARROW, Grouping
from mlc_compile.schedule.kernels.dot import ZERO_SIGNED, ZERO_UNSIGNED, grouping_for
from mlc_compile.schedule.kernels.int8_gemm import Tile
from mlc_compile.target import find_target
from tests.schedule.kernels.int8_products import Acts, Gemm, acts_of, requantized


@pytest.mark.parametrize("residual", [False, True])
def test_products_are_exact_with_every_instruction(compile_kernel, weights, wide_row, residual):
    grouping = grouping_for(wide_row)
    gemm = Gemm(compile_kernel, weights(64, 384), wide_row, grouping, residual=residual)
    random = np.random.default_rng(1)
    for m in (1, 2, 11, 12, 33):
        gemm.check(acts_of(m, 384, random, grouping=grouping), random)


@pytest.mark.parametrize(
    ("n", "k", "dtype", "residual"),
    [
        (1, 128, "float32", True),
        (17, 256, "float16", False),
        (48, 640, "float32", False),
        (112, 1024, "float16", True),
    ],
)
def test_it_takes_any_rows_and_groups(compile_kernel, weights, wide_row, n, k, dtype, residual):
    grouping = grouping_for(wide_row)
    gemm = Gemm(compile_kernel, weights(n, k, dtype), wide_row, grouping, residual=residual)
    random = np.random.default_rng(2)
    for m in (1, 3, 13, 26):
        gemm.check(acts_of(m, k, random, grouping=grouping), random)


@pytest.mark.parametrize("tile", [{"parts": 2}, {"parts": 4}, {"ahead": 0}, {"m": 3}])
def test_every_way_to_cut_it_is_exact(compile_kernel, weights, wide_row, tile):
    grouping = grouping_for(wide_row)
    gemm = Gemm(compile_kernel, weights(64, 512), wide_row, grouping, residual=True, **tile)
    random = np.random.default_rng(3)
    gemm.check(acts_of(10, 512, random, grouping=grouping), random)


@pytest.mark.parametrize("act", [-127, 127])
@pytest.mark.parametrize("code", [0, 14, 15])
def test_nothing_saturates(compile_kernel, int4_matrix, wide_row, act, code):
    grouping, random = grouping_for(wide_row), np.random.default_rng(4)
    matrix = int4_matrix(np.full((32, 256), code), np.ones((32, 8), np.float16))
    gemm = Gemm(compile_kernel, matrix, wide_row, grouping)
    gemm.check(acts_of(5, 256, random, act, act, grouping), random)


def test_a_weight_moves_by_half_of_the_shared_scale_at_most(compile_kernel, int4_matrix, wide_row):
    """A row of x that has a single 1 reads a column of weights."""
    random, grouping = np.random.default_rng(5), grouping_for(wide_row)
    scales = random.uniform(-1, 1, (32, 8)).astype(np.float16)
    scales[3, 2], scales[4], scales[5, 4:] = 0, 0, np.float16(6e-8)
    scales[6, 0], scales[6, 1:] = 6e4, 6e-5  # the largest beside small ones
    matrix = int4_matrix(random.integers(0, 16, (32, 256)), scales)
    acts = Acts(127 * np.eye(256, dtype=int), np.full((256, 2), 1 / 127, np.float32), grouping)
    got = Gemm(compile_kernel, matrix, wide_row, grouping).run(acts)[0].T
    exact = (matrix.codes - 7) * matrix.scales.astype(float).repeat(GROUP, axis=1)
    shared = requantized(matrix, WIDE)[1].astype(float).repeat(WIDE, axis=1)
    units = 8 / 2**9  # of S: 8 by half of 2**-8, what a ratio is rounded by
    assert (np.abs(got - exact) <= (0.5 + units + 1e-6) * shared).all()
    assert (got[4] == 0).all()


@pytest.mark.parametrize("size", [1e-34, 1e-30, 1e30])
def test_float32_scales_of_any_size_keep_their_products(
    compile_kernel, int4_matrix, wide_row, size
):
    random, grouping = np.random.default_rng(7), grouping_for(wide_row)
    scales = (random.uniform(0.5, 1, (32, 8)) * size).astype(np.float32)
    matrix = int4_matrix(random.integers(0, 16, (32, 256)), scales)
    gemm = Gemm(compile_kernel, matrix, wide_row, grouping)
    gemm.check(acts_of(3, 256, random, grouping=grouping), random)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_scale_that_is_not_finite_reaches_its_row(compile_kernel, int4_matrix, wide_row, bad):
    random, grouping = np.random.default_rng(6), grouping_for(wide_row)
    scales = np.ones((32, 8), np.float16)
    scales[9, 5] = bad
    matrix = int4_matrix(random.integers(0, 15, (32, 256)), scales)
    y = Gemm(compile_kernel, matrix, wide_row, grouping).run(
        acts_of(3, 256, random, grouping=grouping)
    )
    assert not np.isfinite(y[0, :, 9]).any()
    assert np.isfinite(np.delete(y, 9, axis=-1)).all()


@pytest.mark.parametrize(
    ("preset", "grouping"),
    [
        ("cpu-x86-64-v3", NARROW),  # vpmaddubsw saturates
        ("cpu-x86-64-v4", NARROW),
        ("cpu-sapphirerapids", Grouping(WIDE, ZERO_UNSIGNED)),
        ("cpu-aarch64-dotprod", Grouping(WIDE, ZERO_SIGNED)),
        ("cpu-aarch64-i8mm", NARROW),  # smmla has a kernel of its own
        ("cpu-aarch64", NARROW),
    ],
)
def test_targets_ask_for_what_their_kernel_takes(preset, grouping):
    assert grouping_for(find_target(preset)) == grouping


def test_the_space_cuts_wide_groups_whole(weights):
    codec = weights(64, 384).codec
    space = Tile.space(find_target("cpu-sapphirerapids"), codec, WIDE)
    assert {point.parts for point in space.points()} == {1, 3}
