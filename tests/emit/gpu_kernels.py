"""Small kernels with launches, shared memory and half floats, for tests of emitters."""

from tvm import IRModule, tirx
from tvm.ir import StringImm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

THREADS = 128


def prim_func(body, **attrs):
    """`body(argument)` writes a kernel; `argument(name, shape, dtype)` is its next parameter."""

    def argument(name, shape, dtype="float32"):
        return T.arg(name, T.buffer(shape, dtype))

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, **attrs})
        body(argument)
    return builder.get()


def launch(blocks, threads=THREADS):
    return T.launch_thread("blockIdx.x", blocks), T.launch_thread("threadIdx.x", threads)


def double(argument):
    """y = 2 x, four values a thread."""
    m = tirx.Var("m", "int64")
    x, y = (argument(name, (m, 4 * THREADS)) for name in "xy")
    block, thread = launch(m)
    with block as row, thread as lane:
        at = tirx.Ramp(lane * 4, 1, 4)
        T.buffer_store(y, x[row, at] * tirx.Broadcast(tirx.FloatImm("float32", 2), 4), [row, at])


def row_sums(argument):
    """y = the sum of each row, by halves through shared memory."""
    m = tirx.Var("m", "int64")
    x, y = argument("x", (m, THREADS)), argument("y", (m,))
    block, thread = launch(m)
    with block as row, thread as lane:
        scratch = T.alloc_buffer((THREADS,), "float32", scope="shared")
        T.buffer_store(scratch, x[row, lane], [lane])
        half = THREADS // 2
        while half:
            T.evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", StringImm("shared")))
            with T.If(lane < half), T.Then():
                T.buffer_store(scratch, scratch[lane] + scratch[lane + half], [lane])
            half //= 2
        with T.If(lane == 0), T.Then():
            T.buffer_store(y, scratch[0], [row])


def widen(argument):
    """y = exp(x) in float32, of float16."""
    m = tirx.Var("m", "int64")
    x, y = argument("x", (m, THREADS), "float16"), argument("y", (m, THREADS))
    block, thread = launch(m)
    with block as row, thread as lane:
        T.buffer_store(y, tirx.exp(tirx.Cast("float32", x[row, lane])), [row, lane])


def hoard(argument):
    """Holds more values than a thread of a block of 1024 has registers."""
    values = 128
    m = tirx.Var("m", "int64")
    w, x = argument("w", (m,)), argument("x", (values, 1024))
    block, thread = launch(1, 1024)
    with block, thread as lane:
        held = T.alloc_buffer((values,), "float32", scope="local")
        with T.unroll(0, values) as i:
            T.buffer_store(held, x[i, lane], [i])
        with T.serial(0, m) as j, T.unroll(0, values) as i:
            T.buffer_store(held, held[i] * held[(i + 1) % values] + w[j], [i])
        with T.unroll(0, values) as i:
            T.buffer_store(x, held[i], [i, lane])


KERNELS = {"double": double, "row_sums": row_sums, "widen": widen}


def module(**bodies):
    functions = {name: prim_func(body, global_symbol=name) for name, body in bodies.items()}
    return IRModule(functions)
