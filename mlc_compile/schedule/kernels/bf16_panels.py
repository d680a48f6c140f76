"""Weights for tiles: INT4 codes become pairs of bfloat16, some strips at a time.

A strip is `width` row blocks that are multiplied side by side. A thread takes a share of all
strips, panel by panel: it unpacks as many as the L2 cache has room for (k * 32 bytes a row block)
and sweeps the rows of x over them. To unpack the next panel between the groups of a sweep was
slower than one after the other on Emerald Rapids: tiles and vectors are in each other's way.
But packed weights are asked for AHEAD of being unpacked: prompts of 512 tokens are 1.04 times as
fast.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS, ZERO_POINT
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.bf16 import PAIRS, pair
from mlc_compile.schedule.kernels.tiles import Block, Place
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4
from mlc_compile.schedule.space import most_up_to
from mlc_compile.target import Target

WORDS: Final = PAIRS // 4  # packed words of a group, for each row: four pairs of codes in one
AHEAD: Final = 8  # pairs of groups by which packed weights are asked for
MAGIC: Final = 0x4B000000  # the bits of 2**23: its lowest mantissa bit is worth 1
PROMPT: Final = 512  # rows of x: a prefill chunk, where nobody says otherwise
SHIFTS: Final = (0, 4, 8, 12)  # where the four codes of half a packed word stand


def most_for(target: Target, counts: Iterable[int], each: int, k: int) -> int:
    """The most of `counts` that have room in the L2 cache, of `each` bytes; else the least.

    Where half of it holds x of a whole chunk, panels take an eighth, so that each finds x there:
    prompts are 1.02 times as fast as with a half on Emerald Rapids. Else x comes from the next
    cache once a panel, so they take the half.
    """
    room = target.l2_bytes // (8 if 2 * (2 * PROMPT * k) <= target.l2_bytes else 2)
    return most_up_to(counts, room // each)


@dataclass(frozen=True, slots=True)
class Strips:
    """`block(strip, i)` is the number of row block i, of `width`, of a strip."""

    codec: Int4
    parts: list[Buffer]
    width: int
    block: Callable[[Index, int], Expr]
    panel: Buffer  # pairs [strips, groups, width, 16, 16 rows]

    @classmethod
    def make(
        cls,
        codec: Int4,
        parts: list[Buffer],
        width: int,
        most: int,
        block: Callable[[Index, int], Expr],
    ) -> "Strips":
        """With scratch memory for panels of `most` strips."""
        shape = most, codec.k // GROUP, width, PAIRS, ROWS
        return cls(codec, parts, width, block, v.workspace(shape, "int32"))

    @contextmanager
    def panels(self, start: Expr, end: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Unpack strips `start` to before `end` by and by: the first, and how many there are."""
        most = int(self.panel.shape[0])
        with T.serial(0, (end - start + (most - 1)) // most) as turn:
            first = v.kept(start + turn * most)
            count = v.kept(tirx.min(end - first, most))
            with T.serial(0, count) as strip, T.serial(0, self._pairs) as number:
                self._ask(first + strip, number + AHEAD)
                self._unpack(first, strip, 2 * number)
                with self._if_there(2 * number + 1):
                    self._unpack(first, strip, 2 * number + 1)
            yield first, count

    def _ask(self, strip: Expr, number: Expr) -> None:
        """Ask for a pair of groups of a strip; past its last pair the next strip's are meant."""
        for i in range(self.width):
            block = self.block(strip + number // self._pairs, i)
            self.codec.ask(self.parts, block, number % self._pairs)

    def _unpack(self, first: Expr, strip: Expr, g: Expr) -> None:
        for i in range(self.width):
            source = self.block(first + strip, i), g
            _unpack(self.codec, self.parts, source, (self.panel, strip, g, i))

    @contextmanager
    def _if_there(self, g: Expr) -> Iterator[None]:
        """A block for group g: the last pair of an odd number of groups has but one."""
        if self._groups % 2 == 0:
            yield
            return
        with T.If(g < self._groups), T.Then():
            yield

    def multiply(
        self, sums: Block, x: Buffer, rows: Sequence[Expr], first: Expr, strip: Index
    ) -> None:
        """Add the tiles of x, i32[1, m, words], that begin at `rows`, times a strip of the panel.

        Strips go through the groups by turns forth and back, so that each begins with the rows
        of x that the one before read last. Neither factor stays in the L1 cache, as some rows of
        x alone exceed it: both are read past it. Together that makes prompts of 512 tokens 1.05
        times as fast on Emerald Rapids. Whose turn it is does not depend on where the panel
        begins, its `first` strip, and so not on the number of threads.
        """
        last = self._groups - 1
        with T.serial(0, self._groups) as step:
            back = (first + strip) % 2 if last else 0  # TVM cannot simplify it for one group
            g = step + back * (last - 2 * step)
            of_w: list[Place] = [(self.panel, (strip, g, i, 0, 0)) for i in range(self.width)]
            sums.add([(x, (0, row, g * PAIRS)) for row in rows], of_w, passing=True)

    @property
    def _groups(self) -> int:
        return self.codec.k // GROUP

    @property
    def _pairs(self) -> int:
        return -(-self._groups // 2)


def _unpack(
    codec: Int4,
    parts: list[Buffer],
    source: tuple[Index, Index],
    to: tuple[Buffer, Index, Index, int],
) -> None:
    """A group of a block of w as pairs [16, 16 rows], at strip, group and block of a panel.

    A code is not shifted down but read where it stands: 2**23 or-ed with the code's bits, the
    lowest at bit s, is 2**23 + 2**s code. Taking 2**23 + 2**s 7 from it leaves 2**s (code - 7),
    which a scale of 2**-s times the group's makes the weight. All of that is exact.
    """
    (block, group), (panel, *place) = source, to
    scales = v.local(len(SHIFTS))
    scale = codec.scale(parts, block, group)
    for i, shift in enumerate(SHIFTS):
        v.store(scale * v.splat(2.0**-shift), scales, i, 0)
    for step in range(WORDS):
        halves = v.local(2, dtype="int32")
        v.store(codec.word(parts, block, group, step), halves, 0, 0)
        v.store(v.load(halves, 0, 0) >> v.splat_i32(16), halves, 1, 0)
        for byte in range(4):
            half, first = byte // 2, byte % 2 * 2
            low, high = (_weight(v.load(halves, half, 0), scales, first + i) for i in range(2))
            v.store(pair(low, high), panel, *place, 4 * step + byte, 0)


def _weight(word: Expr, scales: Buffer, i: int) -> Expr:
    """float32x16: the weights whose codes stand at SHIFTS[i]."""
    unit = 1 << SHIFTS[i]
    bits = (word & v.splat_i32(15 * unit)) | v.splat_i32(MAGIC)
    offset = float(2**23 + ZERO_POINT * unit)
    return (tirx.reinterpret(f"float32x{LANES}", bits) - v.splat(offset)) * v.load(scales, i, 0)
