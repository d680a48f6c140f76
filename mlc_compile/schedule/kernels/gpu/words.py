"""The words of GPU kernels, beside those of `vector`: launches and what threads share.

A PrimFunc may launch several grids one after another, or choose one by a condition: what
stands outside `launch` runs on the host.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr

VECTOR: Final = 4  # elements of one load: 16 bytes of float32 or of INT4 words


@contextmanager
def launch(*blocks: Expr | int, threads: int) -> Iterator[tuple[Expr, ...]]:
    """A grid of `blocks` along x (and y), each of `threads`; gives (block indices .., thread)."""
    frames = [
        T.launch_thread(f"blockIdx.{axis}", extent)
        for axis, extent in zip("xy", blocks, strict=False)
    ]
    indices = [frame.__enter__() for frame in frames]
    inner = T.launch_thread("threadIdx.x", threads)
    indices.append(inner.__enter__())
    try:
        yield tuple(indices)
    finally:
        for frame in reversed([*frames, inner]):
            frame.__exit__(None, None, None)


def registers(*shape: int, dtype: str = v.F32) -> Buffer:
    """Values of one thread; registers once all indices are constants."""
    return T.alloc_buffer(shape, dtype, scope="local")


def shared(*shape: int, dtype: str = v.F32) -> Buffer:
    """Memory that the threads of a block share."""
    return T.alloc_buffer(shape, dtype, scope="shared")


def barrier() -> None:
    """Wait for all threads of the block; what they wrote to shared memory can then be read."""
    T.evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", StringImm("shared")))


def unrolled(extent: int) -> Any:
    """A loop that is written out, so that registers are indexed by constants."""
    return T.unroll(0, extent)


def lane(vector: Expr, index: int) -> Expr:
    """One element of a vector."""
    return tirx.Shuffle([vector], [index])


def block_sum(value: Expr, thread: Expr, threads: int, scratch: Buffer) -> Expr:
    """The sum of `value` over the block's threads, a power of two, in every thread.

    `scratch` is float32 shared memory of `threads` values; it may be used again after the
    next barrier.
    """
    return _tree(value, thread, threads, scratch, lambda a, b: a + b)


def block_max(value: Expr, thread: Expr, threads: int, scratch: Buffer) -> Expr:
    """The largest `value` of the block's threads, as `block_sum`."""
    return _tree(value, thread, threads, scratch, tirx.max)


def _tree(value: Expr, thread: Expr, threads: int, scratch: Buffer, combine: Any) -> Expr:
    assert threads & (threads - 1) == 0, "halving needs a power of two"
    v.put(value, scratch, thread)
    barrier()
    half = threads // 2
    while half:
        with T.If(thread < half), T.Then():
            v.put(combine(scratch[thread], scratch[thread + half]), scratch, thread)
        barrier()
        half //= 2
    return scratch[0]


def block_threads(work: int, most: int) -> int:
    """Threads for `work` items of a block: a power of two, at most `most`, at least 32."""
    threads = 32
    while threads * 2 <= min(work, most):
        threads *= 2
    return threads


def blocks_of(extent: Expr | int, size: int) -> Expr | int:
    """How many blocks of `size` cover `extent`."""
    return (extent + (size - 1)) // size


def index_of(parts: Sequence[Expr]) -> list[Expr]:
    """Indices as 32-bit integers, the width that every device computes fast."""
    return [tirx.Cast("int32", p) if p.ty.dtype != "int32" else p for p in parts]
