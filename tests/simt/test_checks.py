"""Each check fires on the fault it is for, and is silent on the correct twin."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend.nn.llm import _decode_kernels as decode_kernels
from tvm.tirx.script import builder as T

from tests.simt import (
    DataRace,
    DivergentBarrier,
    HostAssertion,
    OutOfBounds,
    UninitializedRead,
    Unsupported,
    run,
)

from .building import arg, call, f32, kernel, launch, local, put, shared, sync

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"})


def neighbour(barrier):
    """y[t] = s[63 - t] through global memory: a race without the barrier."""
    with kernel() as k:
        x, y = arg("x", (64,)), arg("y", (64,))
        with launch(1, 64) as (_, tx):
            put(x, tx, f32(1))
            if barrier:
                sync()
            put(y, tx, x[63 - tx])
    return k.get()


@pytest.mark.parametrize("beyond", [False, True])
def test_a_store_out_of_bounds(beyond):
    with kernel() as k:
        x = arg("x", (64,))
        with launch(1, 64) as (_, tx):
            put(x, tx + int(beyond), f32(1))
    x = np.zeros(64, "float32")
    if beyond:
        with pytest.raises(OutOfBounds, match=r"k: block \(0, 0, 0\) thread \(63, 0, 0\).*x\[64\]"):
            run(k.get(), x)
    else:
        run(k.get(), x)
        assert x.all()


def test_a_guarded_access_is_in_bounds():
    with kernel() as k:
        x, y = arg("x", (40,)), arg("y", (64,))
        with launch(1, 64) as (_, tx):
            with T.If(tx < 40), T.Then():
                put(x, tx, f32(2))
            put(y, tx, tirx.if_then_else(tx < 40, x[tx], f32(0)))
    x, y = np.zeros(40, "float32"), np.ones(64, "float32")
    run(k.get(), x, y)
    np.testing.assert_array_equal(y, [2.0] * 40 + [0.0] * 24)


@pytest.mark.parametrize("memory", [local, shared])
@pytest.mark.parametrize("filled", [False, True])
def test_a_read_of_unwritten_memory(memory, filled):
    with kernel() as k:
        y = arg("y", (64,))
        with launch(2, 32) as (bx, tx):
            s = memory(32)
            with T.If(tirx.Or(tx < 31, filled)), T.Then():
                put(s, tx, f32(3))
            put(y, bx * 32 + tx, s[tx])
    y = np.zeros(64, "float32")
    if filled:
        run(k.get(), y)
        assert (y == 3).all()
    else:
        with pytest.raises(UninitializedRead, match=r"thread \(31, 0, 0\) reads .*\[\d+\]"):
            run(k.get(), y)


@pytest.mark.parametrize("barrier", [False, True])
def test_reading_what_another_thread_wrote(barrier):
    x, y = np.zeros(64, "float32"), np.zeros(64, "float32")
    if barrier:
        run(neighbour(barrier), x, y)
        assert y.all()
    else:
        with pytest.raises(DataRace, match=r"reads x\[\d+\], which block .* touched unordered"):
            run(neighbour(barrier), x, y)


def test_races_are_looked_for_only_on_request():
    x, y = np.zeros(64, "float32"), np.zeros(64, "float32")
    run(neighbour(False), x, y, races=False)
    assert y.all()


@pytest.mark.parametrize("barrier", [False, True])
def test_overwriting_what_another_thread_read(barrier):
    with kernel() as k:
        x, y = arg("x", (32,)), arg("y", (32,))
        with launch(1, 32) as (_, tx):
            put(y, tx, x[(tx + 1) % 32])
            if barrier:
                sync()
            put(x, tx, f32(0))
    arrays = np.ones(32, "float32"), np.zeros(32, "float32")
    if barrier:
        run(k.get(), *arrays)
    else:
        with pytest.raises(DataRace, match=r"writes x\["):
            run(k.get(), *arrays)


@pytest.mark.parametrize("in_shared", [False, True])
def test_two_threads_writing_one_value_to_one_place_race(in_shared):
    with kernel() as k:
        x = arg("x", (16,))
        with launch(1, 32) as (_, tx):
            s = shared(16) if in_shared else x
            put(s, tx // 2, f32(1))
            sync()
            with T.If(tx < 16), T.Then():
                put(x, tx, s[tx])
    with pytest.raises(DataRace, match=r"writes .* thread .* touched unordered"):
        run(k.get(), np.zeros(16, "float32"))


@pytest.mark.parametrize("apart", [False, True])
def test_blocks_are_never_ordered(apart):
    with kernel() as k:
        x, y = arg("x", (4,)), arg("y", (4,))
        with launch(4, 32) as (bx, tx):
            with T.If(tx == 0), T.Then():
                put(x, bx, f32(1))
            sync()
            sync()
            with T.If(tx == 0), T.Then():
                put(y, bx, x[bx if apart else 3 - bx])
    arrays = np.zeros(4, "float32"), np.zeros(4, "float32")
    if apart:
        run(k.get(), *arrays)
    else:
        with pytest.raises(DataRace, match=r"reads x"):
            run(k.get(), *arrays)


@pytest.mark.parametrize("uniform", [False, True])
def test_a_barrier_in_divergent_control_flow(uniform):
    with kernel() as k:
        y = arg("y", (64,))
        with launch(2, 32) as (bx, tx):
            with T.If(bx < 1 if uniform else tx < 16), T.Then():
                sync()
            put(y, bx * 32 + tx, f32(1))
    if uniform:
        run(k.get(), np.zeros(64, "float32"))
    else:
        with pytest.raises(DivergentBarrier, match="16 threads"):
            run(k.get(), np.zeros(64, "float32"))


def test_a_loop_whose_length_differs_by_thread_may_hold_no_barrier():
    with kernel() as k:
        y = arg("y", (32,))
        with launch(1, 32) as (_, tx):
            with T.serial(0, tx + 1):
                sync()
            put(y, tx, f32(1))
    with pytest.raises(DivergentBarrier):
        run(k.get(), np.zeros(32, "float32"))


def test_the_merge_kernel_of_tvm_races():
    """32 lanes read S[i], then all write it, with no barrier between."""
    func = decode_kernels._merge_state_inplace(8, 128, "float16", CUDA)
    rng = np.random.default_rng(0)
    v, v_other = rng.standard_normal((2, 3, 8, 128)).astype("float16")
    s, s_other = rng.standard_normal((2, 3, 8)).astype("float32")
    before, s_before = v.copy(), s.copy()
    with pytest.raises(DataRace, match=r"merge_state_inplace: .* S\[0\]"):
        run(func, v.copy(), s.copy(), v_other, s_other, target=CUDA)
    run(func, v, s, v_other, s_other, target=CUDA, races=False)
    share = (1 / (1 + 2.0 ** (s_other - s_before)))[..., None]
    # a float16 result: 2**-11 relative
    np.testing.assert_allclose(v, before * share + v_other * (1 - share), rtol=2e-3, atol=2e-3)


def test_atomic_updates_race_with_plain_accesses_alone():
    def histogram(plain):
        with kernel() as k:
            x, y = arg("x", (1,)), arg("y", (64,))
            with launch(2, 32) as (bx, tx):
                pointer = call("handle", "address_of", x[0])
                T.evaluate(call("float32", "cuda.atomic_add", pointer, f32(1)))
                put(y, bx * 32 + tx, x[0] if plain else f32(1))
        return k.get()

    x = np.zeros(1, "float32")
    run(histogram(False), x, np.zeros(64, "float32"))
    assert x[0] == 64
    with pytest.raises(DataRace):
        run(histogram(True), x, np.zeros(64, "float32"))


def test_host_assertions_hold():
    with kernel() as k:
        n = tirx.Var("n", "int64")
        x = arg("x", (n,))
        with T.Assert(n < 4, "n is less than four"), launch(1, n) as (_, tx):
            put(x, tx, f32(1))
    run(k.get(), np.zeros(3, "float32"))
    with pytest.raises(HostAssertion, match="less than four"):
        run(k.get(), np.zeros(4, "float32"))


def test_arguments_must_fit():
    with kernel() as k:
        n = tirx.Var("n", "int64")
        x, _ = arg("x", (n, 4)), arg("y", (n,))
        with launch(n, 4) as (bx, tx):
            put(x, (bx, tx), f32(1))
    func = k.get()
    good = np.zeros((3, 4), "float32"), np.zeros(3, "float32")
    run(func, *good)
    assert good[0].all()
    for bad in [
        (good[0], np.zeros(2, "float32")),
        (good[0].astype("float64"), good[1]),
        (np.zeros((4, 3), "float32").T, good[1]),
        good[:1],
        (good[0], good[0].reshape(-1)[:3]),  # shares memory, and x is written
    ]:
        with pytest.raises(Unsupported):
            run(func, *bad)
