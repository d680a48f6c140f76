"""How a kernel is called: bindings, numbers 8 bytes apart, and what is promised of buffers."""

import numpy as np
import pytest
from tvm import tirx

from mlc_compile.emit.spirv.enumerants import Decoration, StorageClass
from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F32, I32, THREADS, barrier, const, kernel, load, store


def add_all(count):
    def body(n):
        total = const(I32, 0)
        for i in range(count):
            total = tirx.Add(total, tirx.Mul(getattr(n, f"m{i}"), const(I32, i + 1)))
        return [store(n.y, total, n.thread)]

    return kernel(body, {"y": I32}, {f"m{i}": I32 for i in range(count)})


def copy(n):
    return [store(n.y, load(n.x, n.thread), n.thread)]


@pytest.mark.vulkan
@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
def test_numbers_arrive(run, count):
    y = np.zeros(THREADS, I32)
    run(add_all(count), [y], tuple(np.int32(7 * i - 3) for i in range(count)))
    assert set(y) == {sum((7 * i - 3) * (i + 1) for i in range(count))}


@pytest.mark.parametrize(("count", "uniform"), [(16, False), (17, True)])
def test_more_numbers_than_push_constants_hold_come_in_a_uniform_block(emit, count, uniform):
    shader = emit(add_all(count))
    code = Code(shader.code)
    classes = [i.operands[2] for i in code.all(Op.Variable)]
    assert shader.uniform_block is uniform
    assert (StorageClass.Uniform in classes, StorageClass.PushConstant in classes) == (
        uniform,
        not uniform,
    )
    places = [i.operands[3] for i in code.all(Op.MemberDecorate)][1:]  # the first is a buffer's
    assert places == [8 * i for i in range(count)]
    bindings = [i.operands[2] for i in code.all(Op.Decorate) if i.operands[1] == Decoration.Binding]
    assert bindings == [0, 1][: 1 + uniform]


@pytest.mark.vulkan
def test_numbers_of_every_type_arrive(run):
    def body(n):
        parts = [n.i, n.u, n.f, tirx.Select(n.b, const(F32, 100), const(F32, 0)), n.wide]
        total = const(F32, 0)
        for part in parts:
            total = tirx.Add(total, tirx.Cast(F32, part))
        return [store(n.y, total, n.thread)]

    y = np.zeros(THREADS, F32)
    dtypes = {"i": I32, "u": "uint32", "f": F32, "b": "bool", "wide": "int64"}
    passed = (np.int32(-3), np.uint32(2**31), np.float32(0.5), np.bool_(True), np.int64(-5))
    run(kernel(body, {"y": F32}, dtypes), [y], passed)
    np.testing.assert_array_equal(y, F32 and np.float32(2**31 + 92.5))


def test_buffers_are_bound_in_order(emit):
    code = Code(emit(kernel(copy, {"x": F32, "y": F32})).code)
    bound = {
        i.operands[0]: i.operands[2]
        for i in code.all(Op.Decorate)
        if i.operands[1] == Decoration.Binding
    }
    assert [bound[code.named(name)] for name in ("x_ptr", "y_ptr")] == [0, 1]
    assert code.decorated(Decoration.DescriptorSet) == set(bound)


@pytest.mark.parametrize(
    ("decoration", "holders"),
    [
        (Decoration.NonWritable, {"x"}),
        (Decoration.NonReadable, {"y"}),
        (Decoration.Restrict, {"x", "y", "z"}),
        (Decoration.Aliased, set()),
        (Decoration.Coherent, set()),
    ],
)
def test_what_is_known_of_buffers_is_said(emit, decoration, holders):
    def body(n):
        z = load(n.z, n.thread)
        return [*copy(n), store(n.z, tirx.Add(z, z), n.thread)]

    code = Code(emit(kernel(body, {"x": F32, "y": F32, "z": F32})).code)
    assert code.decorated(decoration) == {code.named(f"{name}_ptr") for name in holders}


def test_buffers_that_may_overlap_are_said_to(emit):
    code = Code(emit(kernel(copy, {"x": F32, "y": F32}, noalias=False)).code)
    both = {code.named("x_ptr"), code.named("y_ptr")}
    assert code.decorated(Decoration.Aliased) == both
    assert not code.decorated(Decoration.Restrict)


def test_a_buffer_that_threads_meet_in_is_coherent(emit):
    def body(n):
        put = store(n.y, n.thread, n.thread)
        return [put, barrier(), store(n.y, load(n.y, const(I32, 0)), n.thread)]

    code = Code(emit(kernel(body, {"y": I32})).code)
    assert code.decorated(Decoration.Coherent) == {code.named("y_ptr")}


def test_a_buffer_that_is_not_used_keeps_its_binding(emit):
    def body(n):
        return [store(n.z, n.thread, n.thread)]

    code = Code(emit(kernel(body, {"x": F32, "y": F32, "z": I32})).code)
    assert len(code.decorated(Decoration.Binding)) == 3


@pytest.mark.parametrize(("dtype", "extension"), [("int8", True), ("int16", False), ("bool", True)])
def test_8_bit_buffers_need_an_extension_and_16_bit_ones_none(emit, dtype, extension):
    code = Code(emit(kernel(copy, {"x": dtype, "y": dtype})).code)
    assert bool(code.all(Op.Extension)) is extension
