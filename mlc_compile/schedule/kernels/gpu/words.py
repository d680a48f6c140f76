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
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Device

MOST_INT32: Final = 2**31 - 1
SUBGROUP: Final = 32  # threads, where Device.subgroup is more than one
LOWEST: Final = -3.4e38  # below every logit that is a number; shading languages have no -inf
# exp of more is infinite in float32, which not every shading language has; of less than minus
# this it is no normal number.
FAR: Final = 87.0
VECTOR: Final = 4  # elements of one load: 16 bytes of float32 or of INT4 words

Place = tuple[Buffer, tuple[Index, ...]]  # of an element, or of the first of several


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


def workspace(shape: Sequence[Any], dtype: str = v.F32) -> Buffer:
    """Device memory of one call of the kernel, which all its launches see, from TVM's pool.

    Stands outside `launch`. It is used by another name: TVM would else shrink the buffer to
    what it sees used, by extents of launches that ForceNarrowIndexToInt32 forgot, and then
    miss their variables.
    """
    return T.decl_buffer(tuple(shape), dtype, data=v.workspace(shape, dtype).data)


def barrier() -> None:
    """Wait for all threads of the block; what they wrote to shared memory can then be read."""
    T.evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", StringImm("shared")))


def unrolled(extent: int) -> Any:
    """A loop that is written out, so that registers are indexed by constants."""
    return T.unroll(0, extent)


@contextmanager
def unrolled_later(extent: int) -> Iterator[Expr]:
    """As `unrolled`, but by the device's compiler: for so much code that TVM's passes crawl."""
    with T.attr(v.int32(0), "pragma_unroll_explicit", v.int32(0)), unrolled(extent) as i:
        yield i


def lane(vector: Expr, index: int) -> Expr:
    """One element of a vector."""
    return tirx.Shuffle([vector], [index])


def elements(vector: Expr, lanes: int) -> list[Expr]:
    """The elements of a vector, which should be bound: each is an expression of it."""
    return [vector] if lanes == 1 else [lane(vector, i) for i in range(lanes)]


def floats(vector: Expr, lanes: int) -> list[Expr]:
    """The elements of a vector in float32; bind it first, as for `elements`."""
    return [v.cast_f32(e) for e in elements(vector, lanes)]


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


def blocks_of(extent: Expr | int, size: Expr | int) -> Expr | int:
    """How many blocks of `size` cover `extent`."""
    return (extent + (size - 1)) // size


def lanes_for(width: int) -> int:
    """The widest vector that divides `width`."""
    return next(lanes for lanes in (VECTOR, 2, 1) if width % lanes == 0)


@contextmanager
def each_block(extent: Expr | int, device: Device, *, threads: int) -> Iterator[tuple[Expr, Expr]]:
    """A launch of `extent` blocks, in rows of what the device's grid takes; gives (block, thread).

    The last row may be rounded up: its spare blocks do nothing.
    """
    fits = device.grid >= MOST_INT32 or (isinstance(extent, int) and extent <= device.grid)
    if fits:
        with launch(extent, threads=threads) as (block, thread):
            yield block, thread
        return
    width = tirx.min(extent, device.grid)
    with launch(width, blocks_of(extent, device.grid), threads=threads) as (x, y, thread):
        block = y * device.grid + x
        with T.If(block < extent), T.Then():
            yield block, thread


@contextmanager
def each_vector(
    width: int, thread: Expr, threads: int, lanes: int, start: Expr | int = 0
) -> Iterator[Expr]:
    """Walk `width` elements by all threads of a block, `lanes` at once; gives where they begin."""
    whole = width % (threads * lanes) == 0
    with T.serial(0, blocks_of(width, threads * lanes)) as j:
        at = (j * threads + thread) * lanes
        if whole:
            yield start + at
            return
        with T.If(at < width), T.Then():
            yield start + at


@contextmanager
def resident(blocks: int) -> Iterator[None]:
    """What a launch does, compiled for `blocks` side by side on a multiprocessor.

    A hint for CUDA's compiler, which would else spill some registers to fit more of them.
    """
    key = "tirx.launch_bounds_min_blocks_per_sm"
    with T.attr(v.int32(0), key, v.int32(blocks)):
        yield


@contextmanager
def each_item(extent: Expr | int, device: Device, *, threads: int) -> Iterator[Expr]:
    """A launch of a thread for each of `extent` items; gives the item."""
    whole = isinstance(extent, int) and extent % threads == 0
    with each_block(blocks_of(extent, threads), device, threads=threads) as (block, thread):
        item = block * threads + thread
        if whole:
            yield item
            return
        with T.If(item < extent), T.Then():
            yield item


def store_as(value: Expr, buffer: Buffer, *index: Index, lanes: int) -> None:
    """Write a float32 vector in the buffer's type.

    It is computed before: a code generator that writes element by element (WGSL's) would else
    compute the vector anew for each.
    """
    v.store(T.bind(cast(value, str(buffer.dtype), lanes)), buffer, *index, lanes=lanes)


def load_f32(buffer: Buffer, *index: Index, lanes: int) -> Expr:
    """A vector in float32, bound: it is loaded once, here."""
    return T.bind(cast(T.bind(v.load(buffer, *index, lanes=lanes)), v.F32, lanes))


def cast(value: Expr, dtype: str, lanes: int) -> Expr:
    """A vector in another type of element."""
    kind = dtype if lanes == 1 else f"{dtype}x{lanes}"
    return value if str(value.ty.dtype) == kind else tirx.Cast(kind, value)


def view(name: str, shape: Sequence[Any], dtype: str = v.F32) -> Buffer:
    """The next parameter of the kernel: a dense tensor that may begin anywhere in its storage."""
    start = tirx.Var(f"{name}_start", "int64")
    return T.arg(name, T.buffer(tuple(shape), dtype, elem_offset=start))


def number(name: str, dtype: str) -> Expr:
    """The next parameter of the kernel: one number."""
    return T.arg(name, tirx.Var(name, dtype))


def shuffle_sum(value: Expr, lanes: int) -> Expr:
    """The sum over `lanes` neighboring threads, a power of two, in the first of them.

    The threads must belong to one subgroup and all take part. Shuffles go down, the only
    direction that every code generator has; what reaches the other threads means nothing.
    """
    held = registers(1)
    v.put(value, held, 0)
    everyone = tirx.const(0xFFFFFFFF, "uint32")
    distance = lanes // 2
    while distance:
        other = T.tvm_warp_shuffle_down(everyone, held[0], distance, SUBGROUP, SUBGROUP)
        v.put(held[0] + other, held, 0)
        distance //= 2
    return held[0]


def block_total(value: Expr, thread: Expr, threads: int, scratch: Buffer, device: Device) -> Expr:
    """As `block_sum`, of threads that fill subgroups: with one barrier where there are such."""
    if device.subgroup == 1 or threads % SUBGROUP:
        return block_sum(value, thread, threads, scratch)
    part = shuffle_sum(value, SUBGROUP)
    with T.If(thread % SUBGROUP == 0), T.Then():
        v.put(part, scratch, thread // SUBGROUP)
    barrier()
    total = scratch[0]
    for subgroup in range(1, threads // SUBGROUP):
        total = total + scratch[subgroup]
    return total


def silu(x: Expr, lanes: int = 1) -> Expr:
    """x / (1 + exp(-x)): x times its sigmoid."""
    negated = tirx.min(v.splat(0.0, lanes) - x, v.splat(FAR, lanes))
    return x / (v.splat(1.0, lanes) + tirx.exp(negated))


def exp_or_zero(z: Expr) -> Expr:
    """exp(z) of z <= 0; 0 where that is no normal float32."""
    z = T.bind(z)
    return tirx.Select(z > v.const(-FAR), tirx.exp(tirx.max(z, v.const(-FAR))), v.const(0.0))
