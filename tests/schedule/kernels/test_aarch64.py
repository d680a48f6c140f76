"""Kernels of Arm's int8 dot product: the instruction is there, and what it computes under qemu.

The cross-compiled object and driver.c make one static program, which needs nothing of TVM.
"""

import importlib.util
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

from mlc_compile.artifact import FlatKV
from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.layout import GROUP
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import attention, int8, int8_gemm, quantize
from mlc_compile.schedule.kernels.dot import dot_for
from mlc_compile.target import find_target

ROW, HERE = find_target("cpu-aarch64-dotprod"), find_target("cpu")
QEMU = "qemu-aarch64-static"
CODES = {"i": 0, "u": 1, "f": 2}  # numpy's kinds in DLPack
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


def compiled(func):
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with code_generation():
        return tvm.compile(module, target=tvm_target(ROW)).mod


def gemv(codec, n=40, **fused):
    return int8.gemv(codec, n, quantize.plain(96), dot_for(ROW), **fused)


def gemm(codec, *, residual=False):
    return int8_gemm.gemm(codec, 40, dot_for(ROW), int8_gemm.Tile.of(ROW, codec), residual=residual)


def test_a_group_of_a_row_block_is_32_dot_products(codec):
    """8 steps of 16 rows, 4 rows an instruction: none scalarized, none done twice.

    The code is there three times: for both groups of a pair, and for an odd last one.
    """
    assert compiled(gemv(codec)).inspect_source("asm").count("\tsdot\t") == 3 * 32


def test_swiglu_costs_a_second_block_s_dot_products_and_no_more(gate_up):
    func = gemv(gate_up.codec, 64, swiglu=True)
    assert compiled(func).inspect_source("asm").count("\tsdot\t") == 2 * 3 * 32


def test_a_tile_multiplies_by_nothing_else(codec):
    text = compiled(gemm(codec)).inspect_source("asm")
    assert text.count("\tsdot\t") == 32 * int8_gemm.Tile.of(ROW, codec).m
    assert "\tsmull" not in text
    assert "\tsmlal" not in text


@pytest.fixture(scope="module")
def emulate(tmp_path_factory):
    """`emulate(func, cpu="max")(*arrays)`: the arrays as the kernel leaves them on that CPU."""
    if shutil.which(QEMU) is None:
        pytest.skip("needs qemu: apt-get install qemu-user-static")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs zig: pip install 'mlc_compile[cross]'")
    directory = tmp_path_factory.mktemp("aarch64")

    def link(func):
        stem = directory / f"kernel{len(list(directory.iterdir()))}"
        kernel, program = stem.with_suffix(".o"), stem.with_suffix("")
        compiled(func).write_to_file(str(kernel))
        includes = [f"-I{path}" for path in (find_include_path(), find_dlpack_include_path())]
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"]
        driver = Path(__file__).with_name("driver.c")
        subprocess.run([*zig, "-O1", *includes, driver, kernel, "-o", program], check=True)
        return program

    def emulated(func, cpu="max"):
        program = link(func)

        def call(*arguments):
            ran = subprocess.run(
                [QEMU, "-cpu", cpu, program],
                input=b"".join(map(written, arguments)),
                capture_output=True,
                check=False,
            )
            if ran.returncode:
                raise subprocess.CalledProcessError(ran.returncode, QEMU, stderr=ran.stderr)
            return read(ran.stdout, [a for a in arguments if isinstance(a, np.ndarray)])

        return call

    return emulated


def written(argument):
    if isinstance(argument, int):
        return struct.pack("<iq", 0, argument)
    code, bits = CODES[argument.dtype.kind], 8 * argument.itemsize
    head = struct.pack("<4i", 1, code, bits, argument.ndim)
    return head + struct.pack(f"<{argument.ndim}q", *argument.shape) + argument.tobytes()


def read(data, arrays):
    ends = np.cumsum([a.nbytes for a in arrays])
    assert len(data) == ends[-1]
    return [
        np.frombuffer(data[end - a.nbytes : end], a.dtype).reshape(a.shape)
        for a, end in zip(arrays, ends, strict=True)
    ]


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
    *_, y = emulate(gemv(codec, residual=residual))(x, *matrix.packed, *base, y)
    within(y, x, matrix, *base)


@pytest.mark.slow
def test_swiglu_of_gemv_agrees_with_this_machine(emulate, compile_kernel, gate_up):
    """The integer sums are equal; Arm fuses multiply-adds of floats, in silu too."""
    arguments = activations(1), *gate_up.packed, np.full((1, 1, 32), np.nan, np.float32)
    *_, there = emulate(gemv(gate_up.codec, 64, swiglu=True))(*arguments)
    func = int8.gemv(gate_up.codec, 64, quantize.plain(96), dot_for(HERE), swiglu=True)
    *_, here = compile_kernel(func, HERE.name)(*arguments)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gemm_is_exact_on_arm(emulate, matrix, codec):
    prepare, multiply = emulate(quantize.quantize(quantize.plain(96))), emulate(gemm(codec))
    for m in (1, 3, 5, 16, 33):
        x = activations(m)
        blank = np.zeros((1, m, 24), np.int32), np.zeros((1, m, 3), np.float32)
        _, *acts = prepare(x, *blank, np.zeros((1, m, 3), np.int32))
        *_, y = multiply(*acts, *matrix.packed, np.full((1, m, 40), np.nan, np.float32))
        within(y, x, matrix)


@pytest.mark.slow
def test_a_cpu_without_the_instruction_stops_at_it(emulate, matrix, codec):
    """Why the target requires `asimddp`: Cortex-A72 is Armv8.0."""
    run = emulate(gemv(codec), cpu="cortex-a72")
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
    *_, there = emulate(attention.step(op, kv, ROW))(*arguments)
    *_, here = compile_kernel(attention.step(op, kv, HERE))(*arguments)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)  # sums in another order
