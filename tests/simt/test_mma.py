"""PTX's matrix instructions and asynchronous copies, and the faults that go with them."""

import numpy as np
import pytest
from tvm import tirx
from tvm.ir import StringImm
from tvm.script import tirx as script
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels.gpu import async_copy
from mlc_compile.schedule.kernels.gpu import mma as words
from tests.simt import (
    DataRace,
    DivergentBarrier,
    Misaligned,
    UninitializedRead,
    Unsupported,
    run,
)

from .building import arg, call, f32, kernel, launch, local, put, shared, sync
from .mma import A, B, C

PITCH = 24  # elements of a row in shared memory: 48 bytes


def product(*, transposed=False):
    """c[16, 16] = a bᵀ, or a b: both come to shared memory piece by piece."""
    with kernel("product") as k:
        sides = [arg(name, (16, 16), "float16") for name in "ab"]
        c = arg("c", (16, 16))
        with launch(1, 32) as (_, lane):
            panels = shared(2 * 16 * PITCH, "float16")
            for i, side in enumerate(sides):
                at = (i * 16 + lane // 2) * PITCH + lane % 2 * 8
                async_copy.copy((side, (lane // 2, lane % 2 * 8)), panels, at)
            async_copy.end_group()
            async_copy.wait()
            left, two = local(8, "float16"), local(8, "float16")
            words.load_a(lane, left, 0, panels, tirx.IntImm("int32", 0), PITCH)
            load = words.load_pair_transposed if transposed else words.load_pair
            load(lane, two, panels, tirx.IntImm("int32", 16 * PITCH), PITCH)
            for i in range(2):
                sums = local(4)
                for n in range(4):
                    put(sums, n, f32(0))
                words.multiply(sums, 0, left, 0, two, 4 * i)
                for n in range(4):
                    row = words.row_of(lane) + n // 2 * 8
                    put(c, (row, i * 8 + words.column_of(lane) + n % 2), sums[n])
    return k.get()


@pytest.mark.parametrize("transposed", [False, True])
def test_warps_multiply(transposed):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (16, 16)).astype("float16") for _ in range(2))
    c = np.zeros((16, 16), "float32")
    run(product(transposed=transposed), a, b, c)
    wanted = b if transposed else b.T
    np.testing.assert_array_equal(c, a.astype("float32") @ wanted.astype("float32"))


def test_elements_are_where_the_manual_has_them():
    """PTX ISA, matrix fragments for mma.m16n8k16: a's eight elements, b's four, c's four."""
    for lane in range(32):
        group, within = lane // 4, lane % 4
        for i in range(8):
            row = group if i in (0, 1, 4, 5) else group + 8
            column = within * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert (A[0][i, lane], A[1][i, lane]) == (row, column)
        for i in range(4):
            k = within * 2 + (i & 1) + (8 if i >= 2 else 0)
            assert (B[0][i, lane], B[1][i, lane]) == (group, k)
            row = group if i < 2 else group + 8
            assert (C[0][i, lane], C[1][i, lane]) == (row, within * 2 + (i & 1))


def wait(groups):
    """Without the barrier of `async_copy.wait`."""
    T.evaluate(script.ptx["cp.async.wait_group"](groups))


def copying(*, group=True, waits=True, barrier=True, shift=0, meanwhile=None):
    """y[t] = x[(t + 8) % 256], by way of shared memory that another thread fills.

    `meanwhile` the next thread's place is read before the copies, or after, or written.
    """
    with kernel("copying") as k:
        x, y = arg("x", (272,), "float16"), arg("y", (256,), "float16")
        with launch(1, 32) as (_, tx):
            s, beside = shared(256, "float16"), (tx + 1) % 32 * 8
            if meanwhile:
                put(s, tx * 8, tirx.FloatImm("float16", 0))
                sync()
            if meanwhile == "read before":
                put(y, tx, s[beside])
            async_copy.copy((x, (tx * 8 + shift,)), s, tx * 8)
            if group:
                async_copy.end_group()
            if meanwhile == "read after":
                put(y, tx, s[tx * 8])
            if meanwhile == "written":
                sync()
                put(s, beside, tirx.FloatImm("float16", 0))
            if waits:
                wait(0)
            if barrier:
                sync()
            with T.serial(0, 8) as i:
                put(y, tx * 8 + i, s[(tx * 8 + 8) % 256 + i])
    return k.get()


def test_a_copy_arrives():
    x, y = np.arange(272).astype("float16"), np.zeros(256, "float16")
    run(copying(), x, y)
    np.testing.assert_array_equal(y, np.roll(x[:256], -8))


@pytest.mark.parametrize(
    ("fault", "error", "what"),
    [
        ({"waits": False}, UninitializedRead, "which no thread has written"),
        ({"group": False}, UninitializedRead, "which no thread has written"),
        ({"barrier": False}, DataRace, "reads .*, which block .* touched unordered"),
        ({"meanwhile": "read before"}, DataRace, "writes .*, which block .* touched unordered"),
        ({"meanwhile": "read after"}, UninitializedRead, "which no thread has written"),
        ({"meanwhile": "written"}, DataRace, "to where a copy is on its way"),
        ({"shift": 4}, Misaligned, r"copies at x\[4\], which is not 16 bytes even"),
    ],
)
def test_faults_of_copies(fault, error, what):
    with pytest.raises(error, match=what):
        run(copying(**fault), np.zeros(272, "float16"), np.zeros(256, "float16"))


def test_only_the_last_groups_may_be_on_their_way():
    def second(left):
        with kernel("second") as k:
            x, y = arg("x", (512,), "float16"), arg("y", (256,), "float16")
            with launch(1, 32) as (_, tx):
                s = shared(512, "float16")
                for part in range(2):
                    async_copy.copy((x, (part * 256 + tx * 8,)), s, part * 256 + tx * 8)
                    async_copy.end_group()
                wait(left)
                with T.serial(0, 8) as i:
                    first, other = s[tx * 8 + i], s[256 + tx * 8 + i]
                    put(y, tx * 8 + i, first + other if left == 0 else first)
                wait(0)
                put(y, tx * 8, y[tx * 8] + s[256 + tx * 8 + 7])
        return k.get()

    x, y = np.ones(512, "float16"), np.zeros(256, "float16")
    for left, total in [(1, 1), (0, 2)]:
        run(second(left), x, y)
        assert (y[1:8] == total).all()
        assert y[0] == total + 1


def loading(*, start=0, threads=32, form="m16n8k16"):
    """Loads a matrix and multiplies it."""
    with kernel("loading") as k:
        x = arg("x", (16, 24), "float16")
        with launch(1, 64) as (_, tx):
            s, a, c = shared(16 * 24, "float16"), local(8, "float16"), local(4)
            with T.serial(0, 6) as i:
                put(s, i * 64 + tx, x[(i * 64 + tx) // 24, (i * 64 + tx) % 24])
            for n in range(4):
                put(c, n, f32(0))
            sync()
            with T.If(tx < threads), T.Then():
                words.load_a(tx % 32, a, 0, s, tirx.IntImm("int32", start), 24)
                names = [StringImm(n) for n in (form, "row", "col", "fp16", "fp16", "fp32")]
                ends = (a.data, 0, a.data, 0, c.data, 0)
                T.evaluate(call("void", "ptx_legacy.mma", *names, *ends, False))
    return k.get()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"start": 4}, Misaligned),
        ({"threads": 48}, DivergentBarrier),
        ({"form": "m16n8k8"}, Unsupported),
    ],
)
def test_faults_of_matrices(fault, error):
    run(loading(), np.zeros((16, 24), "float16"))
    with pytest.raises(error):
        run(loading(**fault), np.zeros((16, 24), "float16"))
