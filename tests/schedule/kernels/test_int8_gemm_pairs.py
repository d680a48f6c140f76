"""Products by smmla, computed under qemu, against exact integer sums; see int8_products.py."""

import re
import signal
import subprocess
from random import Random

import msgspec
import numpy as np
import pytest

from mlc_compile.layout import GROUP
from mlc_compile.ops import Source
from mlc_compile.schedule import families
from mlc_compile.schedule.kernels import int8_gemm, int8_gemm_pairs, peak, quantize
from mlc_compile.schedule.kernels.dot import MATRIX, dot_for, fastest_for
from mlc_compile.target import find_target
from tests.schedule.kernels.emulator import assembly
from tests.schedule.kernels.int8_products import Acts, acts_of, check

ROW, OLDER = find_target("cpu-aarch64-i8mm"), find_target("cpu-aarch64-dotprod")
Tile = int8_gemm_pairs.Tile
K_OF_A_GROUP = GROUP // 8  # instructions


def pairs(matrix, tile=None, *, residual=False):
    tile = tile or Tile.of(matrix.codec)
    return int8_gemm_pairs.gemm(matrix.codec, len(matrix.codes), tile, residual=residual)


def dots(matrix, *, residual=False):
    tile = int8_gemm.Tile.of(OLDER, matrix.codec)
    n = len(matrix.codes)
    return int8_gemm.gemm(matrix.codec, n, dot_for(OLDER), tile, residual=residual)


def run(program, acts, matrix, *base):
    y = np.full((1, len(acts.codes), len(matrix.codes)), np.nan, np.float32)
    *_, y = program(*acts.arrays, *matrix.packed, *base, y)
    return y


def residual_of(acts, matrix):
    shape = 1, len(acts.codes), len(matrix.codes)
    return np.random.default_rng(len(acts.codes)).standard_normal(shape).astype(np.float32)


# ---- what it computes -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
def test_any_number_of_tokens(emulate, weights, residual):
    matrix = weights(40, 96)
    program = emulate(pairs(matrix, residual=residual), ROW)
    random = np.random.default_rng(1)
    for m in range(1, 34):
        acts = acts_of(m, 96, random)
        base = [residual_of(acts, matrix)] * residual
        check(run(program, acts, matrix, *base), acts, matrix, *(b[0] for b in base))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "k", "dtype", "residual"),
    [
        (1, 32, "float32", True),
        (15, 64, "float16", False),
        (17, 96, "float16", True),
        (32, 128, "float32", True),
        (33, 160, "float32", False),
        (48, 32, "float16", True),
        (112, 512, "float16", False),
    ],
)
def test_any_rows_and_groups(emulate, weights, n, k, dtype, residual):
    matrix = weights(n, k, dtype)
    program = emulate(pairs(matrix, residual=residual), ROW)
    random = np.random.default_rng(2)
    for m in (1, 3, 13, 26):
        acts = acts_of(m, k, random)
        base = [residual_of(acts, matrix)] * residual
        check(run(program, acts, matrix, *base), acts, matrix, *(b[0] for b in base))


@pytest.mark.slow
def test_extremes(emulate, int4_matrix):
    """The largest sums of either sign, no activation, and one alone at every place of a group."""
    codes = np.zeros((32, 128), int)
    codes[::2] = 15
    matrix = int4_matrix(codes, np.ones((32, 4), np.float16))
    program = emulate(pairs(matrix), ROW)
    random = np.random.default_rng(3)
    for low, high in ((-127, -127), (127, 127), (0, 0)):
        acts = acts_of(5, 128, random, low, high)
        check(run(program, acts, matrix), acts, matrix)
    alone = np.zeros((GROUP, 128), int)
    np.fill_diagonal(alone[:, GROUP:], 127)
    acts = Acts(alone, np.ones((GROUP, 4), np.float32))
    check(run(program, acts, matrix), acts, matrix)


@pytest.mark.slow
def test_no_weight_is_taken_for_another(emulate, int4_matrix):
    """Row j of w has its one code at k = j, which only row j of x meets."""
    codes = np.full((GROUP, GROUP), 7)
    np.fill_diagonal(codes, np.arange(GROUP) % 15 + 8 * (np.arange(GROUP) % 15 == 7))
    matrix = int4_matrix(codes, np.ones((GROUP, 1), np.float32))
    acts = Acts(np.diag(np.arange(1, GROUP + 1)), np.ones((GROUP, 1), np.float32))
    y = run(emulate(pairs(matrix), ROW), acts, matrix)
    want = np.diag(np.diag(codes - 7) * np.arange(1, GROUP + 1))
    assert np.count_nonzero(want) == GROUP
    np.testing.assert_array_equal(y[0], want)


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
def test_it_gives_the_bits_of_the_dot_product_s_kernel(emulate, weights, residual):
    matrix = weights(40, 224)
    programs = (
        emulate(pairs(matrix, residual=residual), ROW),
        emulate(dots(matrix, residual=residual), OLDER),
    )
    random = np.random.default_rng(4)
    for m in (1, 2, 7, 16, 33):
        acts = acts_of(m, 224, random)
        base = [residual_of(acts, matrix)] * residual
        got, want = (run(program, acts, matrix, *base) for program in programs)
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_it_takes_what_quantization_gives(emulate, compile_kernel, weights):
    """A row of zeros, one with an outlier, and ordinary ones."""
    matrix, random = weights(40, 96), np.random.default_rng(5)
    x = random.standard_normal((1, 5, 96)).astype(np.float32)
    x[0, 1], x[0, 3, 50] = 0, 1e30
    blank = np.zeros((1, 5, 24), np.int32), np.zeros((1, 5, 3), np.float32)
    prepare = compile_kernel(quantize.quantize(quantize.plain(96)))
    _, codes, scales, _ = prepare(x, *blank, np.zeros((1, 5, 3), np.int32))
    acts = Acts(codes.view(np.int8)[0].astype(np.int64), scales[0])
    y = run(emulate(pairs(matrix), ROW), acts, matrix)
    check(y, acts, matrix)
    assert (y[0, 1] == 0).all()
    assert (y[0, :, 20] == 0).all()  # the row of w that is zero


def points(space):
    """For every choice of every knob one point that has it."""
    every = list(space.points())
    found = [
        next(p for p in every if getattr(p, name) == value)
        for name, choices in space.choices.items()
        for value in choices
    ]
    drawn = Random(0).sample(every, 3)  # where all are moved
    return [p for p in dict.fromkeys((*found, *drawn)) if p != space.default]


@pytest.mark.slow
def test_every_point_gives_the_defaults_bits(emulate, weights):
    matrix = weights(96, 384)
    space = Tile.space(ROW, matrix.codec)
    acts = acts_of(7, 384, np.random.default_rng(6))
    base = residual_of(acts, matrix)
    want = run(emulate(pairs(matrix, residual=True), ROW), acts, matrix, base)
    check(want, acts, matrix, base[0])
    for point in points(space):
        got = run(emulate(pairs(matrix, point, residual=True), ROW), acts, matrix, base)
        np.testing.assert_array_equal(got, want, str(point))


@pytest.mark.slow
def test_a_cpu_without_the_instruction_stops_at_it(emulate, weights):
    """Why the target requires `i8mm`: Cortex-A76 has the dot product alone."""
    matrix, acts = weights(16, 32), acts_of(1, 32, np.random.default_rng(7))
    program = emulate(pairs(matrix), ROW, cpu="cortex-a76")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(program, acts, matrix)
    assert error.value.returncode in {-signal.SIGILL, 128 + signal.SIGILL}


@pytest.mark.slow
def test_the_peak_multiplies_as_the_kernel_does(emulate, monkeypatch):
    monkeypatch.setattr(peak, "ROUNDS", 2)
    monkeypatch.setattr(peak, "TASKS", 3)
    random, tile = np.random.default_rng(8), peak.Sums(2, 2)
    x = random.integers(-127, 128, (peak.DEPTH, 2, 4), np.int8)
    w = random.integers(0, 16, (peak.DEPTH, 2, 4, 2, 2, 4), np.int8)  # 4 registers of 2 rows by 8
    y = np.full((3, 4, 16), np.nan, np.float32)
    words = x.view(np.int32)[..., 0], w.view(np.int32).reshape(peak.DEPTH, 2, 16)
    got = emulate(peak.peak(tile, fastest_for(ROW)), ROW)(*words, y)[-1]
    sums = np.einsum("srk,sbqjhk->rbqj", x.astype(int), w.astype(int))  # both halves of 8 alike
    want = peak.ROUNDS * np.stack([sums, sums], axis=3).reshape(4, 16)  # and both rows
    np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape))


# ---- what it is made of -----------------------------------------------------------------


def inner_loop(text, mnemonic):
    """The instructions of the one loop that has `mnemonic`, its branch the last."""
    blocks = re.split(r"^\S*:.*$", text, flags=re.MULTILINE)
    (found,) = [block for block in blocks if f"\t{mnemonic}\t" in block]
    lines = [line.strip() for line in found.splitlines()]
    made = [line for line in lines if line and not line.startswith((".", "//"))]
    end = next(i for i, line in enumerate(made) if line.startswith("b."))
    return made[: end + 1]


@pytest.mark.parametrize("mcpu", ["neoverse-n1", "apple-m2"])
@pytest.mark.parametrize("n", [48, 64])
def test_a_group_of_the_tile_is_summed_in_registers(weights, mcpu, n):
    """Every product by smmla, none twice, and no register put on the stack in between."""
    matrix, row = weights(n, 256), msgspec.structs.replace(ROW, mcpu=mcpu)
    tile = Tile.of(matrix.codec)
    loop = inner_loop(assembly(pairs(matrix, tile), row), "smmla")
    made = [line.split("\t")[0] for line in loop]
    assert made.count("smmla") == tile.pairs * tile.columns * K_OF_A_GROUP
    assert not {"sdot", "smull", "smlal", "mul"} & set(made)
    assert not [line for line in loop if "[sp" in line]


def by_dots(codec, n):
    """The families of both kernels that multiply by sdot."""
    dot, x = dot_for(OLDER), Source("plain", codec.k, 1e-6)
    many = families.int8_gemm_family(codec, n, dot, OLDER, residual=True)
    one = families.int8_gemv_family(codec, n, x, dot, OLDER, residual=True, swiglu=False)
    return many, one


@pytest.mark.parametrize("n", [48, 64])
def test_dot_products_are_summed_in_registers_too(weights, n):
    for family in by_dots(weights(n, 256).codec, n):
        loop = inner_loop(assembly(family.build(family.space.default), OLDER), "sdot")
        assert not [line for line in loop if "[sp" in line], family.workload.family


def test_it_takes_fewer_instructions_a_product_than_the_dot_product(weights):
    """Of the whole loop: less than two thirds."""
    matrix = weights(64, 256)
    ours, theirs = Tile.of(matrix.codec), int8_gemm.Tile.of(OLDER, matrix.codec)
    smmla = inner_loop(assembly(pairs(matrix), ROW), "smmla")
    sdot = inner_loop(assembly(dots(matrix), OLDER), "sdot")
    assert len(smmla) / (2 * ours.pairs * ours.blocks) < 2 / 3 * len(sdot) / theirs.m


def test_a_family_counts_the_products_of_both_kernels_alike(weights):
    codec = weights(64, 256).codec
    ours = families.int8_gemm_pairs_family(codec, 64, ROW, residual=False)
    theirs = families.int8_gemm_family(codec, 64, dot_for(ROW), ROW, residual=False)
    assert ours.workload.family != theirs.workload.family
    assert ours.operations(5, 0) == theirs.operations(5, 0)
    assert ours.operands == theirs.operands
    assert ours.space.size > 1


def test_the_roof_is_measured_with_the_instruction_that_multiplies_most():
    assert fastest_for(ROW) is MATRIX
    assert fastest_for(OLDER) is dot_for(OLDER)
    tile = peak.TILES[0]
    ours, theirs = (families.peak_family(tile, row, "int8") for row in (ROW, OLDER))
    assert ours.operations(0, 0) == 2 * theirs.operations(0, 0)
