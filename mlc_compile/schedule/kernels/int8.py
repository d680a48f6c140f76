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
from mlc_compile.schedule.kernels.quantize import Feed, Quantized, quantize_row
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space

STEPS: Final = GROUP // DEPTH  # dot products a group
WORDS: Final = STEPS // 2  # words of codes a group: each holds two steps
LINE: Final = 16  # int32 of a cache line


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a task of `gemv` reads its rows of w."""

    blocks: int = 1  # row blocks of a task, which share what is read of x
    chains: int = 2  # independent sums of a group: 1 or 2
    pairs: int = 1  # pairs of groups in the body of the loop
    ahead: int = 0  # pairs of groups by which w is asked for before it is read; 0: it is not
    apart: int = 0  # 1: blocks are read one after the other, 0: side by side

    @classmethod
    def space(cls, codec: Int4, ask_bytes: int = 0, *, swiglu: bool = False) -> "Space[Sweep]":
        """Tasks are whole, and so are the bodies of the loop."""
        joined = 2 if swiglu else 1
        blocks, pairs = codec.blocks // joined, codec.k // GROUP // 2

        def valid(sweep: Sweep) -> bool:
            alone = joined * sweep.blocks == 1
            return not (blocks % sweep.blocks or pairs % sweep.pairs or (alone and sweep.apart))

        return Space(cls.of(codec, ask_bytes), SWEEPS, valid)

    @classmethod
    def of(cls, codec: Int4, ask_bytes: int = 0) -> "Sweep":
        """Bodies of two chains: long ones, for loads to overlap, where w is not asked for.

        Asking is a target's choice (Qwen3-0.6B, one thread): on Emerald Rapids 16 pairs ahead, to
        the L2 cache, make it 1.2 to 1.4 times as fast, on Zen 4 1.2 to 2 times as slow.
        """
        pairs, most = codec.k // GROUP // 2, ask_bytes // (4 * pair_words(codec.scale_dtype))
        ahead = max(n for n in SWEEPS["ahead"] if n <= most)
        bodies = (2, 1) if ahead else (4, 2, 1)
        return cls(pairs=next(n for n in bodies if pairs % n == 0), ahead=ahead)


SWEEPS: Final = {
    "blocks": (1, 2, 3, 4),
    "chains": (1, 2),
    "pairs": (1, 2, 4, 8),
    "ahead": (0, 4, 8, 16, 32, 64, 128),
    "apart": (0, 1),
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
    joined = 2 if swiglu else 1
    outputs, half = n // joined, codec.blocks // joined
    sweep = sweep or Sweep.of(codec)
    tasks = half // sweep.blocks
    with v.kernel() as builder:
        inputs = feed.declare(1)
        parts = codec.arguments()
        base = v.argument("residual", (1, 1, outputs)) if residual else None
        y = v.argument("y", (1, 1, outputs))
        with v.every_thread(tasks):
            x = Quantized(
                codes=v.workspace((1, codec.k // 4), "int32"),
                scales=v.workspace((1, codec.k // GROUP)),
                offsets=v.workspace((1, codec.k // GROUP), "int32"),
            )
            quantize_row(feed, inputs, 0, x, (0,))
            with T.parallel(0, tasks) as task:
                first = [task * sweep.blocks + i for i in range(sweep.blocks)]
                blocks = [block + part * half for block in first for part in range(joined)]
                acc = _sums(codec, parts, x, blocks, (dot, sweep))
                for i, block in enumerate(first):
                    sums = acc[i * joined]
                    if swiglu:
                        up = v.load(*acc[i * joined + 1], 0)
                        v.store(v.silu(v.load(*sums, 0)) * up, *sums, 0)
                    v.put_rows(*sums, y, (0, 0), block * ROWS, outputs, base)
    return builder.get()


def _sums(
    codec: Int4,
    parts: list[Buffer],
    x: Quantized,
    blocks: list[Expr],
    how: tuple[DotProduct, Sweep],
) -> v.Registers:
    """x times each of `blocks`: a register for each."""
    acc = v.Registers.make(len(blocks))
    acc.clear()
    places = list(enumerate(blocks))
    for read in [[place] for place in places] if how[1].apart else [places]:
        _read(codec, parts, x, acc, read, how)
    return acc


def _read(
    codec: Int4,
    parts: list[Buffer],
    x: Quantized,
    acc: v.Registers,
    places: list[tuple[int, Expr]],
    how: tuple[DotProduct, Sweep],
) -> None:
    """acc += x times each block of `places`, side by side so that x is read once."""
    (dot, sweep), groups = how, codec.k // GROUP
    blocks = [block for _, block in places]

    def add(g: Index) -> None:
        for register, block in places:
            share = _dot_group(codec, parts, x, (block, g), dot, sweep.chains)
            v.accumulate(*acc[register], share)

    if groups > 1:
        with T.serial(0, groups // 2 // sweep.pairs) as body:  # as they lie in memory
            for pair in (body * sweep.pairs + i for i in range(sweep.pairs)):
                if sweep.ahead:
                    ask(codec, parts, blocks, pair + sweep.ahead)
                add(2 * pair)
                add(2 * pair + 1)
    if groups % 2:
        add(groups - 1)


def ask(codec: Int4, parts: list[Buffer], blocks: list[Expr], pair: Index) -> None:
    """Ask for a pair of groups of each block; past a block's last pair the next one lies."""
    for block in blocks:
        for word in range(0, pair_words(codec.scale_dtype), LINE):
            v.prefetch(parts[0], block, pair, word)


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
    sums = v.local(chains, dtype="int32")
    v.store(v.splat_i32(x.offsets[0, g]), sums, 0, 0)
    for chain in range(1, chains):
        v.store(v.splat_i32(0), sums, chain, 0)
    for step, codes in steps_of(codec, parts, (block, g)):
        acts, chain = v.splat_i32(x.codes[0, g * STEPS + step]), step // WORDS % chains
        v.store(dot.apply(v.load(sums, chain, 0), codes, acts), sums, chain, 0)
    total = v.load(sums, 0, 0)
    for chain in range(1, chains):
        total = total + v.load(sums, chain, 0)
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
