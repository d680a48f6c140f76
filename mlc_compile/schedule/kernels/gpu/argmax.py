"""The most likely token, in two launches: what `sampler` draws at temperature 0 in ten.

The first launch finds the largest logit of each part of the vocabulary, the second the largest
of those; of equal ones the lowest id.
"""

from collections.abc import Callable
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

THREADS: Final = 256
PARTS: Final = 128  # the most


def workspace_shape(vocab: int) -> tuple[int, int]:
    """Of the float32 workspace: a part's largest logit, and its id, which float32 holds."""
    assert vocab < 2**24
    return (-(-vocab // _size(vocab)), 2)


def argmax(vocab: int, device: Device) -> tirx.PrimFunc:
    """logits[1, vocab] -> token i32[1], workspace."""
    parts, _ = workspace_shape(vocab)
    threads, size = min(THREADS, device.threads), _size(vocab)
    with v.kernel() as builder:
        logits = v.argument("logits", (1, vocab))
        token = v.argument("token", (1,), "int32")
        work = v.argument("work", (parts, 2))
        with g.launch(parts, threads=threads) as (block, thread):
            first = block * size

            def logit(i: Expr) -> tuple[Expr, Expr]:
                at = T.bind(tirx.min(first + i, vocab - 1))
                return logits[0, at], v.cast_f32(at)

            best, number = _largest(size, logit, thread, threads)
            with T.If(thread == 0), T.Then():
                v.put(best, work, block, 0)
                v.put(number, work, block, 1)
        with g.launch(1, threads=threads) as (_, thread):

            def part(i: Expr) -> tuple[Expr, Expr]:
                at = tirx.min(i, parts - 1)
                return work[at, 0], work[at, 1]

            _, number = _largest(parts, part, thread, threads)
            with T.If(thread == 0), T.Then():
                last = tirx.min(number, v.const(vocab - 1.0))  # of no number at all
                v.put(tirx.Cast("int32", last), token, 0)
    return builder.get()


def _largest(
    count: int, item: Callable[[Expr], tuple[Expr, Expr]], thread: Expr, threads: int
) -> tuple[Expr, Expr]:
    """The largest (value, number) of so many items, in thread 0; `item` repeats the last ones."""
    value, number = g.registers(1), g.registers(1)
    v.put(v.const(g.LOWEST), value, 0)
    v.put(v.const(2.0**24), number, 0)
    with T.serial(0, g.blocks_of(count, threads)) as j:
        _keep(value, number, *item(j * threads + thread))
    values, numbers = g.shared(threads), g.shared(threads)
    half = threads // 2
    while half:
        v.put(value[0], values, thread)
        v.put(number[0], numbers, thread)
        g.barrier()
        partner = tirx.min(thread + half, threads - 1)
        other = T.bind(values[partner]), T.bind(numbers[partner])
        g.barrier()
        _keep(value, number, *other)
        half //= 2
    return value[0], number[0]


def _keep(value: Buffer, number: Buffer, other: Expr, other_number: Expr) -> None:
    """Replace what is held by the other if that is larger, or equal with a lower number."""
    other, other_number = T.bind(other), T.bind(other_number)
    equal = tirx.all(other == value[0], other_number < number[0])
    better = T.bind(tirx.any(other > value[0], equal))
    v.put(tirx.Select(better, other, value[0]), value, 0)
    v.put(tirx.Select(better, other_number, number[0]), number, 0)


def _size(vocab: int) -> int:
    """Tokens of a part: whole rounds of THREADS."""
    return -(-vocab // (PARTS * THREADS)) * THREADS
