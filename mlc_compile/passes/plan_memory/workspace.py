"""What a kernel allocates for itself while it runs."""

from typing import Final

from tvm import s_tir, tirx
from tvm.runtime import DataType
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

MAX_STACK: Final = 1024  # bytes: TVM puts no larger buffer on the stack, but in its pool
INFINITE: Final = 2**62


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
    sizes = [_nbytes(b) for b in buffers if b.scope() in ("", "global")]
    return sum(size for size in sizes if MAX_STACK < size < INFINITE)


def _nbytes(buffer: tirx.Var) -> int:
    total, analyzer = DataType(str(buffer.ty.dtype)).itemsize, Analyzer()
    for size in buffer.ty.shape:
        total *= int(analyzer.const_int_bound(size).max_value)
    return int(total)
