"""Small GPU kernels for the interpreter's own tests, written with TVM's IRBuilder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

Expr = object


@contextmanager
def kernel(name: str = "k") -> Iterator[IRBuilder]:
    """A PrimFunc without aliasing arguments; `.get()` it after the block."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "global_symbol": name})
        yield builder


@contextmanager
def launch(blocks: Expr, threads: Expr) -> Iterator[tuple[tirx.Var, tirx.Var]]:
    """A one-dimensional launch: blockIdx.x, threadIdx.x."""
    with T.launch_thread("blockIdx.x", blocks) as bx, T.launch_thread("threadIdx.x", threads) as tx:
        yield bx, tx


def arg(name: str, shape: Sequence[Expr], dtype: str = "float32") -> tirx.Buffer:
    """A buffer parameter."""
    return T.arg(name, T.buffer(tuple(shape), dtype))


def local(size: int, dtype: str = "float32") -> tirx.Buffer:
    """Memory of each thread."""
    return T.alloc_buffer((size,), dtype, scope="local")


def shared(size: int, dtype: str = "float32") -> tirx.Buffer:
    """Memory of each block."""
    return T.alloc_buffer((size,), dtype, scope="shared")


def put(buffer: tirx.Buffer, index: Expr, value: Expr) -> None:
    """buffer[index] = value."""
    T.buffer_store(buffer, value, list(index) if isinstance(index, tuple) else [index])


def sync() -> None:
    """A barrier of the block."""
    T.evaluate(call("void", "tvm_storage_sync", tvm.ir.StringImm("shared")))


def call(dtype: str, name: str, *args: Expr) -> Expr:
    """A call of a tirx operator."""
    return tirx.call_intrin(dtype, f"tirx.{name}", *args)


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.FloatImm("float32", value)


def i32(value: int) -> Expr:
    """An int32 constant."""
    return tirx.IntImm("int32", value)


def vector(dtype: str, lanes: int) -> tvm.ir.PrimType:
    """A vector type."""
    return tvm.ir.PrimType(f"{dtype}x{lanes}")


def elementwise(
    compute: Callable[..., Expr], inputs: Sequence[np.ndarray], out: str
) -> tirx.PrimFunc:
    """out[i] = compute(a[i], b[i], ...), one thread for each of the elements."""
    size = len(inputs[0])
    with kernel() as k:
        buffers = [arg(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
        y = arg("y", (size,), out)
        with launch(1, size) as (_, tx):
            put(y, tx, compute(*[b[tx] for b in buffers]))
    return k.get()
