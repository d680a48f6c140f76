"""What cannot be SPIR-V, or is more than the row promises, is refused by kernel, node and field."""

import msgspec
import pytest
import tvm
from tvm import tirx
from tvm.ir import StringImm

from mlc_compile.emit.spirv import emit_kernel
from mlc_compile.errors import TargetError

from .writing import (
    F16,
    F32,
    I32,
    THREADS,
    barrier,
    call,
    const,
    kernel,
    load,
    local,
    on_axis,
    store,
)


def refused(device, match, body, buffers=None, **asked):
    func = kernel(body, buffers or {"y": F32}, name="the_kernel", **asked)
    with pytest.raises(TargetError, match=match) as error:
        emit_kernel(func, device)
    assert "kernel the_kernel: " in str(error.value)
    assert error.value.hint
    assert error.value.exit_code == 4


def value(make):
    return lambda n: [store(n.y, make(n), n.thread)]


def put(n):
    return store(n.y, const(F32, 0), n.thread)


def wide(n):
    return tirx.Cast(F32, tirx.Add(tirx.Cast("int64", n.thread), const("int64", 2**40)))


def allocated(scope, size=4):
    def body(n):
        held, allocation = local(F32, 4, scope)
        if size != 4:
            held = tirx.decl_buffer((size,), F32, scope=scope)
            allocation = tirx.AllocBuffer(held)
        return [allocation, put(n)]

    return body


def bound(kind):
    def body(n):
        i = tirx.Var("i", I32)
        axis = tirx.IterVar(tvm.ir.Range(0, 4), tirx.Var("vi", I32), 1, "threadIdx.y")
        return [tirx.For(i, const(I32, 0), const(I32, 4), kind, put(n), axis)]

    return body


CASES = {
    "a function nobody knows": (
        r"Call `T.call_pure_extern.*no rule knows the function bessel",
        value(lambda n: call("tirx.call_pure_extern", F32, StringImm("bessel"), const(F32, 1))),
    ),
    "an operator nobody knows": (
        r"Call .*no rule knows the operator tirx.atan",
        value(lambda n: call("tirx.atan", F32, const(F32, 1))),
    ),
    "a function of integers": (
        r"Call .*a function of floats, not of int32",
        value(lambda n: tirx.Cast(F32, call("tirx.exp", I32, n.thread))),
    ),
    "float64": (
        r"Cast `.*there is no float64",
        value(lambda n: tirx.Cast(F32, tirx.Cast("float64", load(n.y, n.thread)))),
    ),
    "a number that needs 64 bits": (r"IntImm `.*needs 64-bit integers", value(wide)),
    "a shift that needs 64 bits": (
        r"LShift `.*may need 64-bit integers",
        value(
            lambda n: tirx.Cast(F32, tirx.LShift(tirx.Cast("int64", n.thread), const("int64", 32)))
        ),
    ),
    "two numbers of threads": (
        r"AttrStmt .*the axis had 64 threads before",
        lambda n: [on_axis("threadIdx.x", tirx.Var("v", I32), 32, put(n))],
    ),
    "an unsigned 64-bit integer": (
        r"Cast `.*there is no uint64",
        value(lambda n: tirx.Cast(F32, tirx.Cast("uint64", n.thread))),
    ),
    "a variable that nothing bound": (
        r"Var `stray`.*nothing was bound",
        value(lambda n: load(n.y, tirx.Var("stray", I32))),
    ),
    "bits of another size": (
        r"Call .*not the same size",
        value(lambda n: call("tirx.reinterpret", F32, tirx.Cast(F16, load(n.y, n.thread)))),
    ),
    "an order of truth": (
        r"LT `.*bool has no order",
        value(lambda n: tirx.Cast(F32, tirx.LT(n.thread < 3, n.thread < 4))),
    ),
    "a barrier of all blocks": (
        r"Call .*threads of other blocks",
        lambda n: [barrier("global"), put(n)],
    ),
    "a barrier as a value": (
        r"Call .*it has no value",
        value(lambda n: call("tirx.tvm_storage_sync", F32, StringImm("shared"))),
    ),
    "an assertion": (
        r"AssertStmt .*no rule executes it",
        lambda n: [tirx.AssertStmt(n.thread < 3, StringImm("RuntimeError"), [StringImm("no")])],
    ),
    "a scope of memory": (
        r"AllocBuffer .*no memory of scope 'warp'",
        allocated("warp"),
    ),
    "memory without a size": (
        r"AllocBuffer .*its size is not a constant",
        allocated("local", tirx.Var("m", I32)),
    ),
    "an attribute": (
        r"AttrStmt .*no rule knows the attribute volatile_scope",
        lambda n: [tirx.AttrStmt(const(I32, 0), "volatile_scope", const(I32, 1), put(n))],
    ),
    "a thread axis": (
        r"AttrStmt .*there is no thread axis vthread",
        lambda n: [on_axis("vthread", tirx.Var("v", I32), 2, put(n))],
    ),
    "threads that are not counted": (
        r"AttrStmt .*the number of threads is not a constant",
        lambda n: [on_axis("threadIdx.y", tirx.Var("v", I32), tirx.Var("m", I32), put(n))],
    ),
    "a loop bound to threads": (
        r"For .*does not reach a device",
        bound(tirx.ForKind.THREAD_BINDING),
    ),
    "a vector that guards loads": (
        r"Call .*a vector of conditions guards",
        lambda n: [
            store(
                n.y,
                call(
                    "prim.if_then_else",
                    "float32x2",
                    tirx.Broadcast(n.thread < 3, 2),
                    load(n.y, n.thread * 2, 2),
                    tirx.Broadcast(const(F32, 0), 2),
                ),
                n.thread * 2,
                2,
            )
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_no_rule_can_do_is_named(device, case):
    match, body = CASES[case]
    refused(device, match, body)


def test_memory_shown_as_another_type_is_refused(device):
    def body(n):
        other = tirx.decl_buffer((THREADS,), I32, "other")
        pointer = call("tirx.buffer_data", "handle", n.y)
        return [tirx.DeclBuffer(other, data=pointer), store(other, n.thread, n.thread)]

    refused(device, "BufferStore .*memory of float32 is shown as int32", body)


@pytest.mark.parametrize(
    ("field", "has", "dtype", "match"),
    [
        ("f16", False, "float16", "float16, .*f16 = False"),
        ("f16", False, "int16", "16-bit values in buffers, .*f16 = False"),
        ("int8", False, "int8", "8-bit values in buffers, .*int8 = False"),
        ("int8", False, "bool", "8-bit values in buffers, .*int8 = False"),
    ],
)
def test_types_beyond_the_row_are_refused_with_its_field(device, field, has, dtype, match):
    row = msgspec.structs.replace(device, **{field: has})
    refused(row, f"Var `y_ptr`.* needs {match}", value(lambda n: load(n.y, n.thread)), {"y": dtype})


def test_float16_on_the_way_is_refused_too(device):
    row = msgspec.structs.replace(device, f16=False)
    rounded = value(lambda n: tirx.Cast(F32, tirx.Cast(F16, load(n.y, n.thread))))
    refused(row, "Cast `.*needs float16, .*f16 = False", rounded)


@pytest.mark.parametrize(
    ("field", "has", "match"),
    [
        ("threads", 32, "64 threads, .*threads = 32"),
        ("shared_bytes", 128, "256 bytes of shared memory, .*shared_bytes = 128"),
        ("buffers", 1, "2 buffers, .*buffers = 1"),
    ],
)
def test_launches_beyond_the_row_are_refused_with_its_field(device, field, has, match):
    row = msgspec.structs.replace(device, **{field: has})

    def body(n):
        held, allocation = local(F32, THREADS, "shared")
        return [allocation, store(held, load(n.x, n.thread), n.thread), put(n)]

    refused(row, f"its launch .*needs {match}", body, {"x": F32, "y": F32})


def test_a_buffer_of_64_bit_integers_is_refused(device):
    body = value(lambda n: load(n.y, n.thread))
    refused(device, "Var `y_ptr`.*64-bit", body, {"y": "int64"})


def test_a_row_that_promises_just_enough_is_enough(device):
    row = msgspec.structs.replace(device, f16=False, int8=False, threads=THREADS, buffers=1)
    assert emit_kernel(kernel(value(lambda n: load(n.y, n.thread)), {"y": F32}), row).code


def chain(length):
    def body(n):
        total = load(n.y, n.thread)
        for _ in range(length):
            total = tirx.Add(total, load(n.y, n.thread))
        return [store(n.y, call("prim.if_then_else", F32, n.thread < 3, total, total), n.thread)]

    return body


def test_sums_are_deep_and_too_deep_ones_are_refused(device):
    assert emit_kernel(kernel(chain(1000), {"y": F32}), device).code
    refused(device, "an expression cannot be SPIR-V: it nests too deep", chain(4000))
