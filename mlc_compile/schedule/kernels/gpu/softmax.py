"""Softmax of logits at a temperature: probabilities for a sampler that is not on the device.

A block takes a part of a row. The first launch leaves each part's largest logit and the mass
under it; in the second every block joins those of its row, and writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

THREADS: Final = 256
PARTS: Final = 64  # the most, of a row; at most THREADS
COLD: Final = 1e-5  # a temperature below it counts as this one: all mass on the largest logits


def workspace_shape(vocab: int) -> tuple[int, int]:
    """Of the float32 workspace of each row."""
    return (-(-vocab // _size(vocab)), 2)


def softmax(vocab: int, device: Device) -> tirx.PrimFunc:
    """logits[b, 1, vocab], temperature[b] -> probabilities[b, 1, vocab], work[b, parts, 2]."""
    b, threads = v.size("b"), min(THREADS, device.threads)
    parts, _ = workspace_shape(vocab)
    with v.kernel() as builder:
        logits = v.argument("logits", (b, 1, vocab))
        temperature = v.argument("temperature", (b,))
        y = v.argument("probabilities", (b, 1, vocab))
        work = v.argument("work", (b, parts, 2))
        with g.each_block(b * parts, device, threads=threads) as (block, thread):
            row = _Row(logits, temperature, block // parts, threads, vocab)
            row.summarize(block % parts, thread, work)
        with g.each_block(b * parts, device, threads=threads) as (block, thread):
            row = _Row(logits, temperature, block // parts, threads, vocab)
            row.write(block % parts, thread, work, y)
    return builder.get()


class _Row:
    """One row of logits, by a block of so many threads."""

    def __init__(
        self, logits: Buffer, temperature: Buffer, number: Expr, threads: int, vocab: int
    ) -> None:
        self.logits, self.number, self.threads, self.vocab = logits, number, threads, vocab
        self.inverse = T.bind(v.const(1.0) / tirx.max(temperature[number], v.const(COLD)))

    def summarize(self, part: Expr, thread: Expr, work: Buffer) -> None:
        """work[row, part]: the largest logit, and the mass of all under it."""
        scratch, top, mass = g.shared(self.threads), g.registers(1), g.registers(1)
        v.put(v.const(g.LOWEST), top, 0)
        with self._each(part, thread) as i:
            v.put(tirx.max(top[0], self.logits[self.number, 0, i]), top, 0)
        peak = T.bind(g.block_max(top[0], thread, self.threads, scratch))
        g.barrier()
        v.put(v.const(0.0), mass, 0)
        with self._each(part, thread) as i:
            v.put(mass[0] + self._weight(self.logits[self.number, 0, i], peak), mass, 0)
        total = g.block_sum(mass[0], thread, self.threads, scratch)
        with T.If(thread == 0), T.Then():
            v.put(peak, work, self.number, part, 0)
            v.put(total, work, self.number, part, 1)

    def write(self, part: Expr, thread: Expr, work: Buffer, y: Buffer) -> None:
        """The probabilities of a part."""
        parts, _ = workspace_shape(self.vocab)
        top, mass = g.registers(1), g.registers(1)
        v.put(v.const(g.LOWEST), top, 0)
        v.put(v.const(0.0), mass, 0)
        with T.serial(0, parts) as other:
            v.put(tirx.max(top[0], work[self.number, other, 0]), top, 0)
        peak = T.bind(top[0])
        with T.serial(0, parts) as other:
            share = self._weight(work[self.number, other, 0], peak) * work[self.number, other, 1]
            v.put(mass[0] + share, mass, 0)
        inverse = T.bind(v.const(1.0) / mass[0])
        with self._each(part, thread) as i:
            weight = self._weight(self.logits[self.number, 0, i], peak)
            v.put(weight * inverse, y, self.number, 0, i)

    @contextmanager
    def _each(self, part: Expr, thread: Expr) -> Iterator[Expr]:
        """Walk a part; gives this thread's tokens."""
        size = _size(self.vocab)
        with T.serial(0, size // self.threads) as j:
            i = T.bind(part * size + j * self.threads + thread)
            with T.If(i < self.vocab), T.Then():
                yield i

    def _weight(self, x: Expr, peak: Expr) -> Expr:
        return g.exp_or_zero((x - peak) * self.inverse)


def _size(vocab: int) -> int:
    """Tokens of a part: whole rounds of THREADS."""
    return -(-vocab // (PARTS * THREADS)) * THREADS
