"""What a kernel allocates for itself while it runs."""

from typing import Final

from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

from mlc_compile.passes.plan_memory.liveness import most_bytes

MAX_STACK: Final = 1024  # bytes: TVM puts no larger buffer on the stack, but in its pool


def workspace_bytes(func: tirx.PrimFunc) -> int:
    """Bytes that each thread takes from TVM's pool; buffers of unknown size are not counted."""
    buffers: list[tirx.Var] = []
    structural_walk(
        func.body,
        [
            (tirx.AllocBuffer, lambda stmt: buffers.append(stmt.buffer)),
            (s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers)),
        ],
    )
    pooled = [b.ty for b in buffers if b.scope() in ("", "global")]
    sizes = [most_bytes(kind.shape, str(kind.dtype), Analyzer()) for kind in pooled]
    return sum(size for size in sizes if size is not None and size > MAX_STACK)
