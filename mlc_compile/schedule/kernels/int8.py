"""y = x w^T with INT4 weights and int8 activations: integer sums a group, scaled once a group.

    y[m, n] = sum over g of  s_w[n, g] s_x[m, g] (sum over k in g of (code_w - 7) code_x)

The inner sum is exact in int32; float32 sees one multiply-add a group. `gemv` reads one
row of x, quantizing it in every thread (cheaper than a barrier), and may end in SwiGLU; for
many rows there is `int8_gemm`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS, pair_words
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DEPTH, DotProduct
from mlc_compile.schedule.kernels.elementary import silu
from mlc_compile.schedule.kernels.quantize import Feed, Quantized, quantize_row
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space, most_up_to
from mlc_compile.target import Target

STEPS: Final = GROUP // DEPTH  # dot products a group
WORDS: Final = STEPS // 2  # words of codes a group: each holds two steps


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a thread of `gemv` reads its rows of w."""

    streams: int = 1  # parts of its rows that it reads side by side, a row block of each in turn
    chains: int = 2  # independent sums of a group: 1 or 2
    pairs: int = 1  # pairs of groups in the body of the loop
    ahead: int = 0  # pairs of groups by which w is asked for before it is read; 0: it is not
    cache: int = 2  # that it is asked into: L1 or L2

    @classmethod
    def space(cls, codec: Int4, target: Target, *, swiglu: bool = False) -> "Space[Sweep]":
        """Bodies of the loop are whole, and a thread's streams are not more than there are."""
        blocks, pairs = codec.blocks // joined_rows(swiglu), codec.k // GROUP // 2

        def valid(sweep: Sweep) -> bool:
            asked = sweep.ahead > 0 or sweep.cache == 2
            return asked and sweep.streams <= blocks and pairs % sweep.pairs == 0

        return Space(cls.of(codec, target, swiglu=swiglu), SWEEPS, valid)

    @classmethod
    def of(cls, codec: Int4, target: Target, *, swiglu: bool = False) -> "Sweep":
        """Bodies of two chains: long ones, for loads to overlap, where w is not asked for.

        A pair of groups for 512 bytes of registers, or LLVM spills (read in assembly for Neoverse,
        Apple's M1 and AVX2). How memory is read best is a target's choice (Qwen3-0.6B). On Emerald
        Rapids one thread decodes 1.3 times as fast when it asks for weights ahead, and 1.15 times
        that in eight streams. On Zen 4 asking makes it 1.2 to 2 times as slow, on the first Zen
        1.3 times as fast; two pairs of gate and up in one body are more than its registers hold.
        """
        joined, pairs = joined_rows(swiglu), codec.k // GROUP // 2
        blocks = codec.blocks // joined
        streams = most_up_to(SWEEPS["streams"], min(target.streams // joined, blocks))
        asked = streams * joined * 4 * pair_words(codec.scale_dtype)
        ahead = most_up_to(SWEEPS["ahead"], target.ask_bytes // asked)
        longest = max(1, 2 // (streams * joined) if ahead else target.register_bytes // 512)
        body = next(n for n in (4, 2, 1) if n <= longest and pairs % n == 0)
        cache = 1 if ahead and streams > 1 else 2  # of each of several little is on its way
        return cls(streams=streams, pairs=body, ahead=ahead, cache=cache)


SWEEPS: Final = {
    "streams": (1, 2, 4, 8),
    "chains": (1, 2),
    "pairs": (1, 2, 4, 8),
    "ahead": (0, 2, 4, 8, 16, 32, 64, 128),
    "cache": (1, 2),
}


def gemv(
    codec: Int4,
    n: int,
    feed: Feed,
    dot: DotProduct,
    sweep: Sweep | None = None,
    *,
    residual: bool = False,
    swiglu: bool = False,
) -> tirx.PrimFunc:
    """x[1, 1, k] of `feed`, parts of w[n, k], residual like y if any -> y[1, 1, n].

    With `swiglu` the rows of w are gate's and then up's, both in whole blocks, and
    y[1, 1, n/2] is silu(gate) * up (+ residual): a block of each is summed side by side.
    """
    assert not swiglu or n % (2 * ROWS) == 0, "SwiGLU takes two halves of whole blocks"
    joined = joined_rows(swiglu)
    outputs, half = n // joined, codec.blocks // joined
    sweep = sweep or Sweep()
    with v.kernel() as builder:
        inputs = feed.declare(1)
        parts = codec.arguments()
        base = v.argument("residual", (1, 1, outputs)) if residual else None
        y = v.argument("y", (1, 1, outputs))

        def multiply(x: Quantized, first: list[Expr]) -> None:
            blocks = [block + part * half for block in first for part in range(joined)]
            acc = _sums(codec, parts, x, blocks, (dot, sweep))
            for i, block in enumerate(first):
                sums = acc[i * joined]
                if swiglu:
                    up = v.load(*acc[i * joined + 1], 0)
                    v.store(silu(v.load(*sums, 0)) * up, *sums, 0)
                v.put_rows(*sums, y, (0, 0), block * ROWS, outputs, base)

        if sweep.streams == 1:  # a row block need not know what else its thread reads
            with v.every_thread(half):
                x = _quantized(codec, feed, inputs)
                with T.parallel(0, half) as block:
                    multiply(x, [block])
        else:
            with v.share_of(half) as (start, end):
                x = _quantized(codec, feed, inputs)
                each = v.kept((end - start) // sweep.streams)
                with T.serial(0, each) as i:
                    multiply(x, [start + stream * each + i for stream in range(sweep.streams)])
                with T.serial(start + sweep.streams * each, end) as block:
                    multiply(x, [block])
    return builder.get()


def joined_rows(swiglu: bool) -> int:
    """Rows of w that make an output."""
    return 2 if swiglu else 1


def _quantized(codec: Int4, feed: Feed, inputs: list[Buffer]) -> Quantized:
    """The row of x, in scratch memory of the thread."""
    x = Quantized(
        codes=v.workspace((1, codec.k // 4), "int32"),
        scales=v.workspace((1, codec.k // GROUP)),
        offsets=v.workspace((1, codec.k // GROUP), "int32"),
    )
    quantize_row(feed, inputs, 0, x, (0,))
    return x


def _sums(
    codec: Int4,
    parts: list[Buffer],
    x: Quantized,
    blocks: list[Expr],
    how: tuple[DotProduct, Sweep],
) -> v.Registers:
    """x times each of `blocks`, side by side: a register for each."""
    (dot, sweep), groups = how, codec.k // GROUP
    acc = v.Registers.make(len(blocks))
    acc.clear()

    def add(g: Index) -> None:
        for i, block in enumerate(blocks):
            v.accumulate(*acc[i], _dot_group(codec, parts, x, (block, g), dot, sweep.chains))

    if groups > 1:
        with T.serial(0, groups // 2 // sweep.pairs) as body:  # as they lie in memory
            for pair in (body * sweep.pairs + i for i in range(sweep.pairs)):
                if sweep.ahead:
                    for block in blocks:
                        codec.ask(parts, block, pair + sweep.ahead, cache=sweep.cache)
                add(2 * pair)
                add(2 * pair + 1)
    if groups % 2:
        add(groups - 1)
    return acc


def _dot_group(
    codec: Int4,
    parts: list[Buffer],
    x: Quantized,
    at: tuple[Index, Index],
    dot: DotProduct,
    chains: int,
) -> Expr:
    """The block's share of y from one group of k; `chains` chains of dot products."""
    block, g = at
    sums = dot.sums(chains)
    for step, codes in steps_of(codec, parts, (block, g)):
        acts = v.splat_i32(x.codes[0, g * STEPS + step])
        dot.add(sums, step // WORDS % chains, codes, acts)
    total = dot.total(sums, 0, chains) + v.splat_i32(x.offsets[0, g])
    return v.to_f32(total) * (codec.scale(parts, block, g) * v.splat(x.scales[0, g]))


def steps_of(
    codec: Int4, parts: list[Buffer], at: tuple[Index, Index]
) -> Iterator[tuple[int, Expr]]:
    """Each step of block and group `at` and its codes, as they lie in memory: 0, 4, 1, 5, .."""
    for word in range(WORDS):
        for half, codes in enumerate(unpacked(codec.word(parts, *at, word))):
            yield half * WORDS + word, codes


def unpacked(packed: Expr) -> tuple[Expr, Expr]:
    """The low and the high nibbles of each byte, as bytes."""
    mask = v.splat_i32(0x0F0F0F0F)
    return packed & mask, (packed >> v.splat_i32(4)) & mask
