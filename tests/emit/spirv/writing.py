"""Kernels as they are lowered, built node by node: no pass simplifies what is to be emitted."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import tvm
from tvm import tirx
from tvm.ir import StringImm

THREADS = 64

F32, F16, I32, U32 = "float32", "float16", "int32", "uint32"


def kernel(
    body: Callable[[SimpleNamespace], Sequence[tirx.Stmt]],
    buffers: dict[str, str],
    numbers: dict[str, str] | None = None,
    *,
    size: int = THREADS,
    threads: int = THREADS,
    name: str = "k",
    noalias: bool = True,
) -> tirx.PrimFunc:
    """A device function of `buffers` and `numbers` (name -> dtype), launched as one block.

    `body` is given both by name, and `thread`, and returns statements.
    """
    n = SimpleNamespace()
    params, stmts = [], []
    for key, dtype in buffers.items():
        scalar = tvm.ir.PrimType(dtype)
        params.append(tirx.Var(f"{key}_ptr", tvm.ir.PointerType(scalar, "global")))
        setattr(n, key, tirx.decl_buffer((size,), dtype, key))
        stmts.append(tirx.DeclBuffer(getattr(n, key), data=params[-1]))
    for key, dtype in (numbers or {}).items():
        params.append(tirx.Var(key, dtype))
        setattr(n, key, params[-1])
    n.thread = tirx.Var("thread", "int32")
    inner = tirx.SeqStmt([*stmts, *body(n), tirx.Evaluate(0)])
    launched = on_axis("threadIdx.x", n.thread, threads, inner)
    func = tirx.PrimFunc(params, launched)
    attrs = {"global_symbol": name, "tirx.noalias": noalias}
    for key, value in attrs.items():
        func = func.with_attr(key, value)
    return func


def on_axis(tag, variable, extent, body):
    """A statement that runs along a thread axis."""
    span = tvm.ir.Range(0, extent)
    axis = tirx.IterVar(span, variable, tirx.IterVar.ThreadIndex, tag)
    value = tirx.IntImm("int32", extent) if isinstance(extent, int) else extent
    return tirx.AttrStmt(axis, "thread_extent", value, body)


def load(buffer, index, lanes=1):
    """An element, or `lanes` neighbors from a multiple of them."""
    return buffer[index] if lanes == 1 else buffer[tirx.Ramp(index, 1, lanes)]


def store(buffer, value, index, lanes=1):
    place = index if lanes == 1 else tirx.Ramp(index, tirx.IntImm("int32", 1), lanes)
    return tirx.BufferStore(buffer, value, [place])


def call(name, dtype, *args):
    return tirx.call_intrin(dtype, name, *args)


def barrier(scope="shared"):
    return tirx.Evaluate(call("tirx.tvm_storage_sync", "int32", StringImm(scope)))


def const(dtype, value):
    return tirx.const(value, dtype)


def local(dtype, size, scope="local"):
    """A buffer of a thread or of a block, and the statement that allocates it."""
    buffer = tirx.decl_buffer((size,), dtype, scope, scope=scope)
    return buffer, tirx.AllocBuffer(buffer)
