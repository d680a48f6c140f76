"""The words that CPU kernels are written in: a PrimFunc frame, vector loads, arithmetic.

Kernels are written with TVM's IRBuilder, so a Python `for` unrolls and a Python function
is a macro. A vector has `LANES` float32 whatever the machine: LLVM splits it into what
the registers hold, and tile sizes are chosen by `Target` so that nothing spills.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

LANES: Final = 16
LINE_BYTES: Final = 64  # of a cache line
F32: Final = "float32"
WHOLE: Final = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the lowest bits
STACKED: Final = 15  # vectors of a buffer on the stack: TVM puts it there below 1 KiB

Expr = Any  # tvm.ir.Expr; TVM is untyped
Buffer = Any
Index = Any


@contextmanager
def kernel(**attrs: object) -> Iterator[IRBuilder]:
    """A PrimFunc without aliasing arguments that no schedule pass may touch; `.get()` it."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8, **attrs})
        yield builder


def argument(name: str, shape: Sequence[Any], dtype: str = F32) -> Buffer:
    """The next parameter of the kernel: a dense tensor."""
    return T.arg(name, T.buffer(tuple(shape), dtype))


def size(name: str) -> Expr:
    """A symbolic dimension, bound by the buffers that use it."""
    return tirx.Var(name, "int64")


def scalar(name: str) -> Expr:
    """The next parameter of the kernel: an int64."""
    return T.arg(name, tirx.Var(name, "int64"))


def local(rows: int, lanes: int = LANES, dtype: str = F32) -> Buffer:
    """`rows` vectors that live in registers once their indices are constants."""
    return workspace((rows, lanes), dtype)


@dataclass(frozen=True, slots=True)
class Registers:
    """`count` vectors as `local` gives them, in buffers that are small enough for the stack.

    What is used as a buffer and its row is `*registers[i]`.
    """

    buffers: tuple[Buffer, ...]
    each: int  # vectors of a buffer

    @classmethod
    def make(
        cls, count: int, dtype: str = F32, lanes: int = LANES, *, stacked: bool = True
    ) -> "Registers":
        """In one buffer, wherever that lies, if not `stacked`."""
        each = STACKED if stacked else count
        sizes = [min(each, count - start) for start in range(0, count, each)]
        return cls(tuple(local(size, lanes, dtype) for size in sizes), each)

    def __getitem__(self, i: int) -> tuple[Buffer, int]:
        return self.buffers[i // self.each], i % self.each

    def clear(self) -> None:
        """Set all to zero."""
        for buffer in self.buffers:
            clear(buffer, int(buffer.shape[0]))


def workspace(shape: Sequence[Any], dtype: str = F32) -> Buffer:
    """Scratch memory of this task, on the stack below 1 KiB, else from TVM's per-thread pool.

    The scope is "global", since only buffers of that scope go on the stack: any other would
    call the allocator at every use.
    """
    return T.alloc_buffer(tuple(shape), dtype, scope="global")


def load(buffer: Buffer, *index: Index, lanes: int = LANES) -> Expr:
    """A vector that starts at `index`, along the last dimension."""
    return buffer[(*index[:-1], _span(index[-1], lanes))]


def store(value: Expr, buffer: Buffer, *index: Index, lanes: int = LANES) -> None:
    """Write a vector that starts at `index`, along the last dimension."""
    T.buffer_store(buffer, value, [*index[:-1], _span(index[-1], lanes)])


def prefetch(buffer: Buffer, *index: Index, cache: int = 2) -> None:
    """Ask for the cache line of an element; there need not be one: no such request fails.

    An index past the end of its dimension means what lies there in memory. The line comes to
    the cache of that level, to L1 not without need: requests for it hold its few miss buffers,
    which loads need too, for as long as memory takes. On Zen 4 a thread then reads blocks of
    8 KiB at 11 and not 21 GB/s.
    """
    place = tirx.address_of(buffer[tuple(index)])
    read, locality, data = int32(0), int32(4 - cache), int32(1)
    T.evaluate(tirx.call_intrin("void", "tirx.prefetch", place, read, locality, data))


def put(value: Expr, buffer: Buffer, *index: Index) -> None:
    """Write one element."""
    T.buffer_store(buffer, value, list(index))


def kept(value: Expr) -> Expr:
    """A value that is worked out here and once, however often it is used."""
    held = local(1, 1, str(value.ty.dtype))
    put(value, held, 0, 0)
    return held[0, 0]


def splat(value: Expr | float, lanes: int = LANES) -> Expr:
    """A float32 in every lane."""
    scalar_value = tirx.FloatImm(F32, value) if isinstance(value, int | float) else value
    return _broadcast(scalar_value, lanes)


def splat_i32(value: Expr | int, lanes: int = LANES) -> Expr:
    """An int32 in every lane."""
    return _broadcast(int32(value) if isinstance(value, int) else value, lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """The type of a vector; TVM has none of one lane, so then a scalar's."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def to_f32(value: Expr, lanes: int = LANES) -> Expr:
    """The values of a vector in float32."""
    return value if value.ty.dtype.startswith(F32) else tirx.Cast(vector_type(F32, lanes), value)


def const(value: float) -> Expr:
    """A float32 constant."""
    return tirx.FloatImm(F32, value)


def int32(value: int) -> Expr:
    """An int32 constant."""
    return tirx.IntImm("int32", value)


def cast_f32(value: Expr) -> Expr:
    """One value in float32."""
    return value if value.ty.dtype == F32 else tirx.Cast(F32, value)


def total(buffer: Buffer, row: Index, lanes: int = LANES) -> Expr:
    """The sum of a register's lanes, by halves: log2(lanes) vector additions."""
    return _fold(buffer, row, lanes, lambda a, b: a + b)


def largest(buffer: Buffer, row: Index, lanes: int = LANES) -> Expr:
    """The largest of a register's lanes, by halves."""
    return _fold(buffer, row, lanes, tirx.max)


def accumulate(buffer: Buffer, row: Index, value: Expr) -> None:
    """buffer[row] += value, a whole vector."""
    store(load(buffer, row, 0) + value, buffer, row, 0)


def clear(buffer: Buffer, rows: int | Iterable[int], value: float = 0.0) -> None:
    """Set whole vectors to `value`."""
    for row in range(rows) if isinstance(rows, int) else rows:
        store(splat(value), buffer, row, 0)


@contextmanager
def every_thread(tasks: int) -> Iterator[None]:
    """Run the block once in each thread of the pool; `T.parallel(0, tasks)` inside is shared out.

    One launch for a preparation that each thread repeats and a loop that they divide. A
    single task stays on the caller's thread: TVM drops a loop of one, and a launch needs one.
    """
    if tasks == 1:
        yield
        return
    with T.attr(tirx.const(0, "int32"), "pragma_parallel_launch_point", tirx.const(1, "int32")):
        yield


@contextmanager
def share_of(count: int) -> Iterator[tuple[Expr, Expr]]:
    """Run the block once in each thread of the pool, on its share, first to before last.

    For what is worth preparing once a thread: a task of `T.parallel` does not know what else its
    thread does. Shares are as even as whole numbers are, and none is empty: of more threads
    than `count` some have nothing to do.
    """
    threads = tirx.Cast("int64", tirx.call_packed("runtime.NumThreads"))
    shares = kept(tirx.min(threads, tirx.IntImm("int64", count)))
    with T.parallel(0, shares) as thread:
        yield kept(thread * count // shares), kept((thread + 1) * count // shares)


def put_rows(
    acc: Buffer,
    register: int,
    y: Buffer,
    at: tuple[Index, ...],
    column: Expr,
    n: int,
    base: Buffer | None = None,
) -> None:
    """y[at, column..] = acc[register] (+ base there), of LANES columns those below n."""
    if n % LANES == 0:
        value = load(acc, register, 0)
        store(value if base is None else value + load(base, *at, column), y, *at, column)
        return
    for lane in range(LANES):
        with T.If(column + lane < n), T.Then():
            element = acc[register, lane]
            total_value = element if base is None else element + base[(*at, column + lane)]
            put(total_value, y, *at, column + lane)


def get_rows(
    y: Buffer, at: tuple[Index, ...], column: Expr, n: int, acc: Buffer, register: int
) -> None:
    """acc[register] = y[at, column..], of LANES columns those below n."""
    if n % LANES == 0:
        store(load(y, *at, column), acc, register, 0)
        return
    for lane in range(LANES):
        with T.If(column + lane < n), T.Then():
            put(y[(*at, column + lane)], acc, register, lane)


def lanes_for(width: int) -> int:
    """The widest vector that divides `width`."""
    return next(lanes for lanes in (16, 8, 4, 2, 1) if width % lanes == 0)


@contextmanager
def over(extent: Expr | int, *, parallel: bool) -> Iterator[Expr]:
    """A loop from 0, over threads if `parallel`."""
    frame = T.parallel if parallel else T.serial
    with frame(0, extent) as i:
        yield i


def _span(start: Index, lanes: int) -> Expr:
    """The index of `lanes` elements; TVM has no vectors of one lane, so then a scalar's."""
    first = int32(start) if isinstance(start, int) else start
    return first if lanes == 1 else tirx.Ramp(first, 1, lanes)


def _broadcast(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def _fold(buffer: Buffer, row: Index, lanes: int, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """Combine the upper half of a register with the lower until one value is left."""
    while lanes > 2:
        whole, half = load(buffer, row, 0, lanes=lanes), lanes // 2
        kind = f"{buffer.dtype}x{half}"
        folded = local(1, half, buffer.dtype)
        low, high = tirx.vectorlow(kind, whole), tirx.vectorhigh(kind, whole)
        store(combine(low, high), folded, 0, 0, lanes=half)
        buffer, row, lanes = folded, 0, half
    return combine(buffer[row, 0], buffer[row, 1]) if lanes == 2 else buffer[row, 0]
