"""Loads and stores: what is kept in memory is what was computed, in every type and width."""

import numpy as np
import pytest
from tvm import tirx

from mlc_compile.emit.spirv.enumerants import Decoration, StorageClass
from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F16, F32, I32, THREADS, barrier, const, kernel, load, local, store

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32")


def some(dtype, size=THREADS):
    rng = np.random.default_rng(0)
    least, most = (0, 2) if dtype == "bool" else (0, 200) if dtype == "uint8" else (-99, 99)
    return rng.integers(least, most, size).astype(dtype)


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 6, 8])
def test_values_survive_a_copy(run, dtype, lanes):
    def body(n):
        at = n.thread * lanes
        copied = store(n.y, load(n.x, at, lanes), at, lanes)
        return [tirx.IfThenElse(n.thread < THREADS // lanes, copied, None)]

    x = some(dtype)
    y = np.zeros_like(x)
    run(kernel(body, {"x": dtype, "y": dtype}), [x, y])
    used = THREADS // lanes * lanes
    np.testing.assert_array_equal(y[:used], x[:used])
    assert not y[used:].any()


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scope", ["shared", "local"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_values_survive_in_memory_of_a_block_and_of_a_thread(run, dtype, scope, lanes):
    def body(n):
        size = THREADS if scope == "shared" else lanes
        held, allocation = local(dtype, size, scope)
        at = n.thread * lanes
        other = at if scope == "shared" else const(I32, 0)
        kept = store(held, load(n.x, at, lanes), other, lanes)
        back = store(n.y, load(held, other, lanes), at, lanes)
        inside = n.thread < THREADS // lanes
        return [
            allocation,
            tirx.IfThenElse(inside, kept, None),
            barrier(),
            tirx.IfThenElse(inside, back, None),
        ]

    x = some(dtype)
    y = np.zeros_like(x)
    run(kernel(body, {"x": dtype, "y": dtype}), [x, y])
    np.testing.assert_array_equal(y, x)


@pytest.mark.vulkan
def test_vectors_are_gathered_and_scattered_at_any_indices(run):
    def body(n):
        thrice = tirx.Ramp(n.thread * const(I32, 4), const(I32, 1), 4)
        back = tirx.Ramp(tirx.Sub(const(I32, THREADS - 1), n.thread * 4), const(I32, -1), 4)
        copied = tirx.BufferStore(n.y, n.x[thrice], [back])
        return [tirx.IfThenElse(n.thread < THREADS // 4, copied, None)]

    x = some(F32)
    y = np.zeros_like(x)
    run(kernel(body, {"x": F32, "y": F32}), [x, y])
    np.testing.assert_array_equal(y, x[::-1])


def vector_buffer(dtype, lanes, scope):
    held = tirx.decl_buffer((THREADS,), f"{dtype}x{lanes}", "held", scope=scope)
    return held, tirx.AllocBuffer(held)


@pytest.mark.vulkan
@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_a_buffer_may_have_vectors_as_elements(run, dtype, lanes):
    def body(n):
        held, allocation = vector_buffer(dtype, lanes, "shared")
        at = n.thread * lanes
        mirrored = tirx.Sub(const(I32, THREADS - 1), n.thread)
        kept = tirx.BufferStore(held, load(n.x, at, lanes), [n.thread])
        return [allocation, kept, barrier(), store(n.y, held[mirrored], at, lanes)]

    x = some(dtype, THREADS * lanes)
    y = np.zeros_like(x)
    run(kernel(body, {"x": dtype, "y": dtype}, size=THREADS * lanes), [x, y])
    np.testing.assert_array_equal(y, x.reshape(THREADS, lanes)[::-1].reshape(-1))


def copy(start, lanes=4):
    """y = x, `lanes` at once from where `start(thread)` says."""

    def body(n):
        at = start(n.thread)
        return [store(n.y, load(n.x, at, lanes), at, lanes)]

    return kernel(body, {"x": F32, "y": F32})


def strides(code):
    return [i.operands[2] for i in code.all(Op.Decorate) if i.operands[1] == Decoration.ArrayStride]


@pytest.mark.parametrize(
    ("start", "stride"),
    [
        pytest.param(lambda t: t * 4, 16, id="aligned"),
        pytest.param(lambda t: t * 4 + 8, 16, id="aligned, from two vectors on"),
        pytest.param(lambda t: t * 4 + 2, 8, id="halves"),
        pytest.param(lambda t: t * 4 + 1, 4, id="not aligned"),
        pytest.param(lambda t: t, 4, id="overlapping"),
    ],
)
def test_elements_are_as_wide_as_every_access_is_aligned(emit, start, stride):
    code = Code(emit(copy(start)).code)
    assert set(strides(code)) == {stride}
    assert code.count(Op.Load) == 1 + 16 // stride  # the thread's place, and x


def test_one_scalar_access_makes_a_buffer_one_of_scalars(emit):
    def body(n):
        at = n.thread * 4
        return [store(n.y, load(n.x, at, 4), at, 4), store(n.y, load(n.x, n.thread), n.thread)]

    assert strides(Code(emit(kernel(body, {"x": F32, "y": F32})).code)) == [4]


def test_three_lanes_are_stored_apart_since_a_vector_of_three_takes_four(emit):
    assert set(strides(Code(emit(copy(lambda t: t * 3, 3)).code))) == {4}


def test_volatile_memory_is_read_each_time(emit):
    def body(n):
        held, _ = local(F32, THREADS, "shared")
        marked = tirx.AllocBuffer(held, {"tirx.volatile": True})
        return [marked, store(held, load(n.x, n.thread), n.thread)]

    code = Code(emit(kernel(body, {"x": F32})).code)
    (stored,) = code.all(Op.Store)
    assert stored.operands[2:] == (1,)


def test_memory_of_a_block_and_of_a_thread_are_different_classes(emit):
    def body(n):
        (a, first), (b, second) = local(F32, 64, "shared"), local(F32, 4, "local")
        put = store(b, load(n.x, n.thread), const(I32, 0))
        return [first, second, put, store(a, load(b, const(I32, 0)), n.thread)]

    code = Code(emit(kernel(body, {"x": F32})).code)
    classes = [i.operands[2] for i in code.all(Op.Variable)]
    assert {StorageClass.Workgroup, StorageClass.Function} < set(classes)
