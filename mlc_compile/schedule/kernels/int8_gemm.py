"""y = x w^T for many rows of x: INT4 weights by int8 activations that `quantize` prepared.

A group of k is summed exactly and scaled once, as in `int8`. Weights are unpacked to bytes
once for all rows: what is unpacked, and which sums are held, is a `Tile`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.dot import DotProduct
from mlc_compile.schedule.kernels.int8 import STEPS, WORDS, ask, unpacked
from mlc_compile.schedule.kernels.quantize import Quantized
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums that an inner loop of `gemm` holds: `m` rows of x by `blocks` row blocks of w."""

    m: int
    blocks: int
    parts: int = 1  # of k: the unpacked weights of one part lie in the cache while it is swept
    late: int = 0  # 1: a group's sum takes its offset at the end, 0: it begins with it
    ahead: int = 1  # pairs of groups of the next strip that every tile of rows asks for

    @classmethod
    def of(cls, target: Target, codec: Int4) -> "Tile":
        """Integer and float sums take half the vector registers if a row block is one, else 3/4."""
        whole = target.f32_lanes >= LANES
        blocks = 2 if whole and codec.blocks % 2 == 0 else 1
        registers = 2 * blocks * max(1, LANES // target.f32_lanes)
        held = target.vector_registers // 2 if whole else target.vector_registers * 3 // 4
        return cls(m=max(1, held // registers), blocks=blocks)

    @classmethod
    def space(cls, target: Target, codec: Int4) -> "Space[Tile]":
        """Strips and parts are whole, and the registers hold the integer sums."""
        groups, split = codec.k // GROUP, max(1, LANES // target.f32_lanes)

        def valid(tile: Tile) -> bool:
            held = tile.m * tile.blocks * split
            broken = codec.blocks % tile.blocks or groups % tile.parts
            return not broken and held <= target.vector_registers

        return Space(cls.of(target, codec), TILES, valid)


TILES: Final = {
    "m": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "blocks": (1, 2, 3, 4),
    "parts": (1, 2, 3, 4),
    "late": (0, 1),
    "ahead": (0, 1, 2),
}


def gemm(codec: Int4, n: int, dot: DotProduct, tile: Tile, *, residual: bool) -> tirx.PrimFunc:
    """codes, scales, offsets of x[1, m, k], parts of w[n, k], residual if any -> y[1, m, n].

    A thread unpacks `tile.blocks` row blocks of w to bytes (k * 16 bytes each, for the L2
    cache), then sweeps the rows of x over them. The last tile is ragged: its surplus rows
    repeat the last row and write what that row writes.
    """
    m, groups = v.size("m"), codec.k // GROUP
    depth = groups // tile.parts
    with v.kernel() as builder:
        x = Quantized(
            codes=v.argument("acts", (1, m, codec.k // 4), "int32"),
            scales=v.argument("act_scales", (1, m, groups)),
            offsets=v.argument("act_offsets", (1, m, groups), "int32"),
        )
        parts = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        with T.parallel(0, codec.blocks // tile.blocks) as strip:
            blocks = [strip * tile.blocks + b for b in range(tile.blocks)]
            panel = _Panel.make(depth, tile.blocks)
            with each_part(tile.parts) as part:
                with T.serial(0, depth) as g:
                    for b, block in enumerate(blocks):
                        panel.fill(codec, parts, (block, part * depth + g), (g, b))
                with T.serial(0, (m + (tile.m - 1)) // tile.m) as step:
                    if tile.ahead:
                        ask_next(codec, parts, blocks, (part, step), (tile.parts, tile.ahead))
                    rows = [tirx.min(step * tile.m + i, m - 1) for i in range(tile.m)]
                    sink = Sink(y, base, n, rows, blocks)
                    acc = sink.begin(part)
                    with T.serial(0, depth) as g:
                        _add_group(x, panel, acc, (rows, g, part * depth + g), (dot, tile))
                    sink.end(acc, part, tile.parts)
    return builder.get()


@contextmanager
def each_part(parts: int) -> Iterator[Index]:
    """A loop over the parts of k; without one if there is one part."""
    if parts == 1:
        yield 0
        return
    with T.serial(0, parts) as part:
        yield part


def ask_next(
    codec: Int4,
    weights: list[Buffer],
    blocks: list[Expr],
    at: tuple[Index, Index],
    how: tuple[int, int],
) -> None:
    """Ask for some pairs of groups of what is unpacked next: strip or part of k.

    `at` is the part and the step of rows, `how` the number of parts and of pairs.
    """
    (part, step), (parts, ahead) = at, how
    pairs = codec.k // GROUP // 2 // parts
    following = [block + len(blocks) for block in blocks] if parts == 1 else blocks
    for i in range(ahead):
        pair = step * ahead + i
        with T.If(pair < pairs), T.Then():
            place = pair if parts == 1 else (part + 1) * pairs + pair
            ask(codec, weights, following, place)


@dataclass(frozen=True, slots=True)
class Sink:
    """A tile of y: `rows` of it by row blocks `blocks` of w; `base` is the residual, if any."""

    y: Buffer
    base: Buffer | None
    n: int
    rows: list[Expr]
    blocks: list[Expr]

    @property
    def _places(self) -> list[tuple[tuple[Index, Expr], Expr]]:
        """Where each sum goes: its row, its first column."""
        return [((0, row), block * ROWS) for row in self.rows for block in self.blocks]

    def begin(self, part: Index) -> v.Registers:
        """The sums before a part of k: zero, then what the part before left in y.

        All are read before any is written, so that repeated rows stay equal.
        """
        acc = v.Registers.make(len(self._places))
        if isinstance(part, int):
            acc.clear()
            return acc
        with T.If(part == 0):
            with T.Then():
                acc.clear()
            with T.Else():
                for register, (at, column) in enumerate(self._places):
                    v.get_rows(self.y, at, column, self.n, *acc[register])
        return acc

    def end(self, acc: v.Registers, part: Index, parts: int) -> None:
        """Write the sums; the last of `parts` adds the residual."""
        if isinstance(part, int) or self.base is None:
            self._put(acc, self.base)
            return
        with T.If(part == parts - 1):
            with T.Then():
                self._put(acc, self.base)
            with T.Else():
                self._put(acc, None)

    def _put(self, acc: v.Registers, base: Buffer | None) -> None:
        for register, (at, column) in enumerate(self._places):
            v.put_rows(*acc[register], self.y, at, column, self.n, base)


@dataclass(frozen=True, slots=True)
class _Panel:
    """Unpacked weights of a strip: i32[groups, steps, blocks, 16] and [groups, blocks, 16]."""

    codes: Buffer
    scales: Buffer
    blocks: int

    @classmethod
    def make(cls, groups: int, blocks: int) -> "_Panel":
        return cls(
            codes=v.workspace((groups, STEPS, blocks, ROWS), "int32"),
            scales=v.workspace((groups, blocks, ROWS)),
            blocks=blocks,
        )

    def fill(
        self, codec: Int4, parts: list[Buffer], source: tuple[Index, Index], at: tuple[Index, int]
    ) -> None:
        """Unpack block and group `source` to group and block `at` of the panel."""
        g, b = at
        v.store(codec.scale(parts, *source), self.scales, g, b, 0)
        for word in range(WORDS):
            for half, codes in enumerate(unpacked(codec.word(parts, *source, word))):
                v.store(codes, self.codes, g, half * WORDS + word, b, 0)


def _add_group(
    x: Quantized,
    panel: _Panel,
    acc: v.Registers,
    where: tuple[list[Expr], Index, Index],
    how: tuple[DotProduct, Tile],
) -> None:
    """acc += one group of k, for every row of the tile and every block of the panel."""
    (rows, held, g), (dot, tile) = where, how
    places = [
        (i * panel.blocks + b, row, b) for i, row in enumerate(rows) for b in range(panel.blocks)
    ]
    sums = v.Registers.make(len(places), "int32")
    for register, row, _ in places:
        begin = 0 if tile.late else x.offsets[0, row, g]
        v.store(v.splat_i32(begin), *sums[register], 0)
    for step in range(STEPS):
        codes = [v.load(panel.codes, held, step, b, 0) for b in range(panel.blocks)]
        for register, row, b in places:
            acts = v.splat_i32(x.codes[0, row, g * STEPS + step])
            at = sums[register]
            v.store(dot.apply(v.load(*at, 0), codes[b], acts), *at, 0)
    for register, row, b in places:
        total = v.load(*sums[register], 0)
        if tile.late:
            total = total + v.splat_i32(x.offsets[0, row, g])
        scale = v.load(panel.scales, held, b, 0) * v.splat(x.scales[0, row, g])
        v.accumulate(*acc[register], v.to_f32(total) * scale)
