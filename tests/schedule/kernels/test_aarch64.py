"""Kernels of Arm's int8 dot product: the instruction is there, and what it computes under qemu."""

import signal
import subprocess

import numpy as np
import pytest

from mlc_compile.artifact import FlatKV
from mlc_compile.layout import GROUP
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import attention, int8, int8_gemm, quantize
from mlc_compile.schedule.kernels.dot import dot_for, grouping_for
from mlc_compile.target import find_target
from tests.schedule.kernels.emulator import assembly
from tests.schedule.kernels.int8_products import Gemm, acts_of

ROW, HERE = find_target("cpu-aarch64-dotprod"), find_target("cpu")
EPS = np.finfo(np.float32).eps


@pytest.fixture(scope="module")
def matrix(int4_matrix):
    """w[40, 96], codes 0..15."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (40, 96))
    return int4_matrix(codes, random.uniform(-0.1, 0.1, (40, 3)).astype(np.float16))


@pytest.fixture(scope="module")
def gate_up(int4_matrix):
    """w[64, 96]: two row blocks of gate, two of up."""
    random = np.random.default_rng(4)
    codes = random.integers(0, 16, (64, 96))
    return int4_matrix(codes, random.uniform(-0.1, 0.1, (64, 3)).astype(np.float16))


@pytest.fixture(scope="module")
def codec(matrix):
    return matrix.codec


def gemv(codec, n=40, **fused):
    return int8.gemv(codec, n, quantize.plain(96), dot_for(ROW), **fused)


def gemm(codec, *, residual=False):
    return int8_gemm.gemm(codec, 40, dot_for(ROW), int8_gemm.Tile.of(ROW, codec), residual=residual)


def test_a_group_of_a_row_block_is_32_dot_products(codec):
    """8 steps of 16 rows, 4 rows an instruction: none scalarized, none done twice.

    The code is there three times: for both groups of a pair, and for an odd last one.
    """
    assert assembly(gemv(codec), ROW).count("\tsdot\t") == 3 * 32


def test_swiglu_costs_a_second_block_s_dot_products_and_no_more(gate_up):
    func = gemv(gate_up.codec, 64, swiglu=True)
    assert assembly(func, ROW).count("\tsdot\t") == 2 * 3 * 32


def test_a_tile_multiplies_by_nothing_else(codec):
    text = assembly(gemm(codec), ROW)
    assert text.count("\tsdot\t") == 32 * int8_gemm.Tile.of(ROW, codec).m
    assert "\tsmull" not in text
    assert "\tsmlal" not in text


def within(y, x, matrix, base=None):
    """y against the exact sums over x as it is quantized; see test_int8.py for the bound."""
    groups = x[0].reshape(len(x[0]), -1, GROUP).astype(float)
    top = np.abs(groups).max(axis=-1, keepdims=True)
    codes = np.rint(groups * (127 / top))
    w = (matrix.codes - 7).reshape(len(matrix.codes), -1, GROUP)
    terms = np.einsum("mgk,ngk->mng", codes, w) * (top.swapaxes(1, 2) / 127 * matrix.scales)
    exact = terms.sum(axis=-1) + (0 if base is None else base[0])
    bound = (terms.shape[-1] + 5) * EPS * (np.abs(terms).sum(axis=-1) + np.abs(exact))
    assert (np.abs(y[0] - exact) <= bound).all()


def activations(m):
    """Their products with 127 / max are no half-way points, so rounding is not in doubt."""
    codes = np.random.default_rng(m).integers(-126, 127, (1, m, 96))
    codes[..., ::GROUP] = 127
    return (codes * 0.01).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
def test_gemv_is_exact_on_arm(emulate, matrix, codec, residual):
    x = activations(1)
    base = [np.random.default_rng(2).standard_normal((1, 1, 40)).astype(np.float32)] * residual
    y = np.full((1, 1, 40), np.nan, np.float32)
    *_, y = emulate(gemv(codec, residual=residual), ROW)(x, *matrix.packed, *base, y)
    within(y, x, matrix, *base)


@pytest.mark.slow
def test_swiglu_of_gemv_agrees_with_this_machine(emulate, compile_kernel, gate_up):
    """The integer sums are equal; Arm fuses multiply-adds of floats, in silu too."""
    arguments = activations(1), *gate_up.packed, np.full((1, 1, 32), np.nan, np.float32)
    *_, there = emulate(gemv(gate_up.codec, 64, swiglu=True), ROW)(*arguments)
    func = int8.gemv(gate_up.codec, 64, quantize.plain(96), dot_for(HERE), swiglu=True)
    *_, here = compile_kernel(func, HERE.name)(*arguments)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gemm_is_exact_on_arm(emulate, matrix, codec):
    prepare = emulate(quantize.quantize(quantize.plain(96)), ROW)
    multiply = emulate(gemm(codec), ROW)
    for m in (1, 3, 5, 16, 33):
        x = activations(m)
        blank = np.zeros((1, m, 24), np.int32), np.zeros((1, m, 3), np.float32)
        _, *acts = prepare(x, *blank, np.zeros((1, m, 3), np.int32))
        *_, y = multiply(*acts, *matrix.packed, np.full((1, m, 40), np.nan, np.float32))
        within(y, x, matrix)


@pytest.mark.slow
def test_wide_groups_are_exact_on_arm(emulate, int4_matrix):
    random, grouping = np.random.default_rng(5), grouping_for(ROW)
    scales = random.uniform(0.01, 1, (40, 8)).astype(np.float16)
    matrix = int4_matrix(random.integers(0, 15, (40, 256)), scales)
    wide = Gemm(lambda func, _row: emulate(func, ROW), matrix, ROW, grouping)
    for m in (1, 5, 16):
        wide.check(acts_of(m, 256, random, grouping=grouping), random)


@pytest.mark.slow
def test_a_cpu_without_the_instruction_stops_at_it(emulate, matrix, codec):
    """Why the target requires `asimddp`: Cortex-A72 is Armv8.0."""
    run = emulate(gemv(codec), ROW, cpu="cortex-a72")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(activations(1), *matrix.packed, np.zeros((1, 1, 40), np.float32))
    assert error.value.returncode in {-signal.SIGILL, 128 + signal.SIGILL}


@pytest.mark.slow
def test_a_step_of_attention_agrees_with_this_machine(emulate, compile_kernel):
    op = Attention(0, 4, 2, 32, 1e-6, 1.0, (1.0,) * 16)
    kv = FlatKV(layers=2, kv_heads=2, head_dim=32, page=16, dtype="float16")
    random = np.random.default_rng(3)

    def floats(*shape, dtype="float32"):
        return random.standard_normal(shape).astype(dtype)

    pages = floats(2, 4, 2, 32, 16, dtype="float16"), floats(2, 4, 2, 16, 32, dtype="float16")
    where = np.array([2, 0, 3, 1], np.int32), np.array([37], np.int32)
    inputs = floats(1, 1, 256), floats(32), floats(32), floats(1, 32)
    o = np.full((1, 1, 128), np.nan, np.float32)
    arguments = (*inputs, *pages, *where, 1, o)
    *_, there = emulate(attention.step(op, kv, ROW), ROW)(*arguments)
    *_, here = compile_kernel(attention.step(op, kv, HERE))(*arguments)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)  # sums in another order
