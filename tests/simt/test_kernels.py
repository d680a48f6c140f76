"""Whole kernels against numpy: reductions, loops, warps, tensor cores, several launches."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.emit.cuda.emitter import left_as_source
from tests.simt import (
    DivergentBarrier,
    DivergentShuffle,
    Launch,
    Misaligned,
    OutOfBounds,
    UninitializedRead,
    run,
)

from .building import arg, call, f32, i32, kernel, launch, local, put, shared, sync

METAL = tvm.target.Target({"kind": "metal"}, host={"kind": "llvm"})


def row_sums(threads=64):
    """y[i] = sum of x[i, :256], by a tree in shared memory."""
    with kernel("row_sums") as k:
        n = tirx.Var("n", "int64")
        x, y = arg("x", (n, 256)), arg("y", (n,))
        with launch(n, threads) as (bx, tx):
            s, a = shared(threads), local(1)
            put(a, 0, f32(0))
            with T.serial(0, 256 // threads) as j:
                put(a, 0, a[0] + x[bx, j * threads + tx])
            put(s, tx, a[0])
            half = threads // 2
            while half:
                sync()
                with T.If(tx < half), T.Then():
                    put(s, tx, s[tx] + s[tx + half])
                half //= 2
            with T.If(tx == 0), T.Then():
                put(y, bx, s[0])
    return k.get()


@pytest.mark.parametrize("rows", [1, 7, 300])  # 300 rows of 64 threads are two chunks
def test_a_reduction_through_shared_memory(rows):
    x = np.random.default_rng(1).integers(-9, 9, (rows, 256)).astype("float32")
    y = np.zeros(rows, "float32")
    (record,) = run(row_sums(), x, y, target=METAL)
    np.testing.assert_array_equal(y, x.sum(axis=1))  # small integers: exact in any order
    assert record == Launch("row_sums", (rows, 1, 1), (64, 1, 1), 256, 4, 2)


def test_a_grid_of_no_blocks_is_one_block_as_tvms_runtime_launches_it():
    with pytest.raises(OutOfBounds, match=r"read of x\[0\], size 0"):
        run(row_sums(), np.zeros((0, 256), "float32"), np.zeros(0, "float32"), target=METAL)


@pytest.mark.parametrize("kind", ["cuda", "metal", "vulkan", "webgpu"])
def test_kernels_of_every_gpu_target(kind):
    target = tvm.target.Target({"kind": kind}, host={"kind": "llvm"})
    x, y = np.ones((2, 256), "float32"), np.zeros(2, "float32")
    run(row_sums(), x, y, target=target)
    np.testing.assert_array_equal(y, [256.0, 256.0])


@pytest.mark.parametrize(("m", "grid"), [(3, (1, 1, 1)), (9, (9, 1, 1))])
def test_the_host_chooses_the_kernel(m, grid):
    with kernel() as k:
        n = tirx.Var("n", "int64")
        x = arg("x", (n,))
        with T.If(n <= 8):
            with T.Then(), launch(1, 8) as (_, tx), T.If(tx < n), T.Then():
                put(x, tx, f32(1))
            with T.Else(), launch(n, 1) as (bx, _):
                put(x, bx, f32(2))
    x = np.zeros(m, "float32")
    (record,) = run(k.get(), x)
    assert record.grid == grid
    np.testing.assert_array_equal(x, np.full(m, 1 if m <= 8 else 2))


def test_the_host_loops_over_launches_and_passes_scalars():
    with kernel() as k:
        x, times = arg("x", (32,)), T.arg("times", tirx.Var("times", "int32"))
        scale = T.arg("scale", tirx.Var("scale", "float32"))
        with T.serial(0, times) as i, launch(1, 32) as (_, tx):
            put(x, tx, x[tx] + scale * tirx.Cast("float32", i + 1))
    x = np.zeros(32, "float32")
    assert len(run(k.get(), x, 3, 0.5)) == 3
    np.testing.assert_array_equal(x, np.full(32, 3.0))


def test_loops_may_run_longer_in_some_threads():
    with kernel() as k:
        y = arg("y", (32,))
        with launch(1, 32) as (_, tx):
            a, i = local(1), local(1, "int32")
            put(a, 0, f32(0))
            with T.serial(0, tx) as j:
                put(a, 0, a[0] + tirx.Cast("float32", j))
            put(i, 0, tx)
            with T.While(i[0] > 0):
                put(i, 0, i[0] - 2)
            put(y, tx, a[0] + tirx.Cast("float32", i[0]))
    y = np.zeros(32, "float32")
    run(k.get(), y)
    t = np.arange(32)
    np.testing.assert_array_equal(y, t * (t - 1) / 2 - t % 2)


def test_a_local_array_indexed_by_thread():
    with kernel() as k:
        y = arg("y", (64,))
        with launch(1, 64) as (_, tx):
            a = local(4, "int32")
            with T.serial(0, 4) as j:
                put(a, (j + tx) % 4, j)
            put(y, tx, tirx.Cast("float32", a[tx % 3]))
    y = np.zeros(64, "float32")
    run(k.get(), y)
    t = np.arange(64)
    np.testing.assert_array_equal(y, (t % 3 - t) % 4)


@pytest.mark.parametrize(
    ("name", "operand", "source"),
    [
        ("tvm_warp_shuffle", 5, lambda t: t // 32 * 32 + 5),
        ("tvm_warp_shuffle_down", 4, lambda t: np.where(t % 32 < 28, t + 4, t)),
        ("tvm_warp_shuffle_up", 4, lambda t: np.where(t % 32 >= 4, t - 4, t)),
        ("tvm_warp_shuffle_xor", 3, lambda t: t ^ 3),
    ],
)
def test_warp_shuffles(name, operand, source):
    with kernel() as k:
        x, y = arg("x", (64,)), arg("y", (64,))
        with launch(1, 64) as (_, tx):
            mask = tirx.IntImm("uint32", 0xFFFFFFFF)
            put(y, tx, call("float32", name, mask, x[tx], i32(operand), i32(32), i32(32)))
    x, y = np.arange(64, dtype="float32"), np.zeros(64, "float32")
    run(k.get(), x, y)
    np.testing.assert_array_equal(y, x[source(np.arange(64))])


def test_a_shuffle_from_an_inactive_thread_is_refused():
    with kernel() as k:
        y = arg("y", (32,))
        with launch(1, 32) as (_, tx), T.If(tx < 16), T.Then():
            mask = tirx.IntImm("uint32", 0xFFFFFFFF)
            value = tirx.Cast("float32", tx)
            shuffled = call(
                "float32", "tvm_warp_shuffle_xor", mask, value, i32(16), i32(32), i32(32)
            )
            put(y, tx, shuffled)
    with pytest.raises(DivergentShuffle):
        run(k.get(), np.zeros(32, "float32"))


def tensor_core_product(m, n, k_extent, *, filled=True, shift=0):
    """c = a @ b.T, a warp per 16 x 16 tile; `a` goes through shared memory."""
    with kernel("mma") as k:
        a, b = arg("a", (m, k_extent), "float16"), arg("b", (n, k_extent), "float16")
        c = arg("c", (m, n))
        with launch(m // 16, 32 * (n // 16)) as (bx, tx):
            s = shared(256, "float16")
            fa = T.alloc_buffer((256,), "float16", scope="wmma.matrix_a")
            fb = T.alloc_buffer((256,), "float16", scope="wmma.matrix_b")
            fc = T.alloc_buffer((256,), "float32", scope="wmma.accumulator")
            size, threads = [16, 16, 16], 32 * (n // 16)
            if filled:
                T.evaluate(tirx.tvm_fill_fragment(fc.data, *size, 0, f32(0)))
            with T.serial(0, k_extent // 16) as ko:
                sync()
                with T.serial(0, 256 // threads) as j:
                    at = j * threads + tx
                    put(s, at, a[bx * 16 + at // 16, ko * 16 + at % 16])
                sync()
                right = b.access_ptr("r", offset=tx // 32 * 16 * k_extent + ko * 16 + shift)
                load = tirx.tvm_load_matrix_sync
                T.evaluate(load(fa.data, *size, 0, s.access_ptr("r"), 16, "row_major"))
                T.evaluate(load(fb.data, *size, 0, right, k_extent, "col_major"))
                T.evaluate(tirx.tvm_mma_sync(fc.data, 0, fa.data, 0, fb.data, 0, fc.data, 0))
            out = c.access_ptr("w", offset=bx * 16 * n + tx // 32 * 16)
            T.evaluate(tirx.tvm_store_matrix_sync(fc.data, *size, 0, out, n, "row_major"))
    return k.get()


def test_tensor_cores_multiply():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (n, 48)).astype("float16") for n in (32, 64))
    c = np.zeros((32, 64), "float32")
    run(tensor_core_product(32, 64, 48), a, b, c)
    np.testing.assert_array_equal(c, a.astype("float32") @ b.astype("float32").T)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"filled": False}, UninitializedRead),
        ({"shift": 1}, Misaligned),
        ({"shift": 16}, OutOfBounds),
    ],
)
def test_faults_of_warp_matrices(fault, error):
    a, b, c = (
        np.zeros((16, 16), "float16"),
        np.zeros((32, 16), "float16"),
        np.zeros((16, 32), "float32"),
    )
    with pytest.raises(error):
        run(tensor_core_product(16, 32, 16, **fault), a, b, c)


@pytest.mark.parametrize("threads", [16, 48])
def test_a_warp_matrix_wants_the_whole_warp(threads):
    with kernel() as k:
        a = arg("a", (16, 16), "float16")
        with launch(1, 64) as (_, tx), T.If(tx < threads), T.Then():
            fa = T.alloc_buffer((256,), "float16", scope="wmma.matrix_a")
            source = a.access_ptr("r")
            T.evaluate(tirx.tvm_load_matrix_sync(fa.data, 16, 16, 16, 0, source, 16, "row_major"))
    with pytest.raises(DivergentBarrier):
        run(k.get(), np.zeros((16, 16), "float16"))


def simdgroup_product(*, filled=True, threads=64):
    """c = a @ b.T, [8, 8] by each of two simdgroups, which share b."""
    with kernel("simdgroups") as k:
        a, b = arg("a", (16, 24), "float16"), arg("b", (8, 24), "float16")
        c = arg("c", (16, 8))
        with launch(1, 64) as (_, tx), T.If(tx < threads), T.Then():
            fa, fb = (T.alloc_buffer((64,), "float16", scope="metal.simdgroup") for _ in range(2))
            fc = T.alloc_buffer((64,), "float32", scope="metal.simdgroup")
            if filled:
                fill = call("void", "make_filled_simdgroup_matrix", fc.data, 0, f32(0), 8, 8)
                T.evaluate(fill)
            with T.serial(0, 3) as i:
                for to, side, row, transposed in ((fa, a, tx // 32 * 8, False), (fb, b, 0, True)):
                    place = side.access_ptr("r", offset=row * 24 + i * 8)
                    load = call("void", "simdgroup_load", to.data, 0, place, 24, 8, 8, transposed)
                    T.evaluate(load)
                ends = [x for f in (fc, fa, fb, fc) for x in (f.data, 0)]
                T.evaluate(call("void", "simdgroup_multiply_accumulate", *ends))
            place = c.access_ptr("w", offset=tx // 32 * 64)
            T.evaluate(call("void", "simdgroup_store", fc.data, 0, place, 8, 8, 8, False))
    return k.get()


def test_simdgroups_multiply():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (n, 24)).astype("float16") for n in (16, 8))
    c = np.zeros((16, 8), "float32")
    run(simdgroup_product(), a, b, c)
    np.testing.assert_array_equal(c, a.astype("float32") @ b.astype("float32").T)


@pytest.mark.parametrize(
    ("fault", "error"),
    [({"filled": False}, UninitializedRead), ({"threads": 48}, DivergentBarrier)],
)
def test_faults_of_simdgroup_matrices(fault, error):
    sides = np.zeros((16, 24), "float16"), np.zeros((8, 24), "float16")
    with pytest.raises(error):
        run(simdgroup_product(**fault), *sides, np.zeros((16, 8), "float32"))


def test_fragments_may_be_selected_by_a_loop():
    with kernel() as k:
        a, c = arg("a", (16, 64), "float16"), arg("c", (16, 64), "float16")
        with launch(1, 32):
            f = T.alloc_buffer((1024,), "float16", scope="wmma.accumulator")
            size = [16, 16, 16]
            with T.serial(0, 4) as i:
                source = a.access_ptr("r", offset=i * 16)
                T.evaluate(tirx.tvm_load_matrix_sync(f.data, *size, i, source, 64, "row_major"))
            with T.serial(0, 4) as i:
                target = c.access_ptr("w", offset=i * 16)
                T.evaluate(
                    tirx.tvm_store_matrix_sync(f.data, *size, 3 - i, target, 64, "row_major")
                )
    a = np.arange(1024, dtype="float16").reshape(16, 64)
    c = np.zeros((16, 64), "float16")
    run(k.get(), a, c)
    np.testing.assert_array_equal(c.reshape(16, 4, 16), a.reshape(16, 4, 16)[:, ::-1])


def test_the_cuda_code_generator_accepts_the_tensor_core_kernel():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"})
    with left_as_source():
        built = tvm.tirx.build(tensor_core_product(32, 64, 48), target)
    assert "nvcuda::wmma::mma_sync" in built.imports[0].inspect_source()
