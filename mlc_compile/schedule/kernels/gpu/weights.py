"""The weight side of GPU matmuls: how `plain` parts of w[n, k] become float32 values.

A `Codec` declares the parameters of one storage and reads it in two ways: a unit, the 16
bytes that a thread of `gemv` loads at once, and a piece, what a thread of `gemm` decodes.

Integers do not become floats by conversion, which NVIDIA runs at a quarter of the rate of
additions: a code is put into the mantissa of 2**23 as it stands in its word, at bit 4 j, and
2**23 + 7 * 16**j is subtracted, which is exact. The values are so 16**j too large. `gemv`
keeps x divided by that (a power of two, exact), so a weight costs an and-or, an addition and
a fused multiply-add, and every eighth a shift. NVIDIA's and-or takes one constant: the other,
2**23, must be in a register, and the compiler puts there only what it does not know.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, NIBBLES, ZERO_POINT, range_rows, ranges_for
from mlc_compile.quant import SCHEMES
from mlc_compile.quant.int4 import Int4Group
from mlc_compile.quant.plain import Plain
from mlc_compile.quant.scheme import NormDtype, Scheme
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index

UNIT_BYTES: Final = 16  # the widest load of one thread
MANTISSA: Final = 23  # bits; codes lie below
EXPONENT: Final = (127 + MANTISSA) << MANTISSA  # the bits of 2**23
UNSHIFTED: Final = 4  # codes of a word that are below the mantissa's top without a shift
HALF_WORD: Final = 16  # bits

Held = Sequence[Expr]  # what a fetch left in registers


class Codec(Protocol):
    """One storage of w[n, k]; `span` elements are a unit, `piece` a piece; both divide k."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def span(self) -> int: ...
    @property
    def piece(self) -> int: ...
    @property
    def registers(self) -> int:
        """32-bit registers that a fetched unit takes."""

    @property
    def shrinks(self) -> tuple[float, ...]:
        """What x must be multiplied by for `values`, periodic along k."""

    def arguments(self) -> list[Buffer]:
        """Declare the kernel's weight parameters."""

    def fetch(self, parts: list[Buffer], row: Index, unit: Index) -> Held:
        """Load a unit of a row, and what scales it."""

    def values(self, held: Held, exponent: Expr) -> Iterator[Expr]:
        """The unit's float32 values in order along k, times 1 / `shrinks`, not yet scaled.

        `exponent` is EXPONENT, in a register if that can be had.
        """

    def scale(self, held: Held) -> Expr | None:
        """What a sum over the unit must still be multiplied by, if anything."""

    def fetch_piece(self, parts: list[Buffer], row: Index, piece: Index) -> Held:
        """Load a piece of a row, and what scales it."""

    def decode(self, held: Held) -> list[Expr]:
        """The piece's float32 values, in order along k."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The first part of a weight, [n, columns], in `count` buffers of so many rows each.

    A kernel sees no more of one buffer than some APIs show; see layout.Ranges.
    """

    n: int
    columns: int
    dtype: str
    most: int | None

    @property
    def count(self) -> int:
        """How many buffers there are."""
        return ranges_for(self.n, self.columns * np.dtype(self.dtype).itemsize, self.most)

    @property
    def rows(self) -> int:
        """Of each buffer but the last."""
        return range_rows(self.n, self.count)

    def arguments(self, name: str) -> list[Buffer]:
        """Declare the buffers."""
        return [
            v.argument(
                name if self.count == 1 else f"{name}_{i}",
                (min(self.rows, self.n - i * self.rows), self.columns),
                self.dtype,
            )
            for i in range(self.count)
        ]

    def load(self, buffers: Sequence[Buffer], row: Index, column: Index, lanes: int) -> Expr:
        """Elements of a row, bound; only the buffer that has the row is read."""
        if self.count == 1:
            return T.bind(v.load(buffers[0], row, column, lanes=lanes))
        held = g.registers(lanes, dtype=self.dtype)
        place = T.bind(tirx.Cast("int32", row))
        for i, buffer in enumerate(buffers[: self.count]):
            inside = place < min((i + 1) * self.rows, self.n)
            with T.If(tirx.all(place >= i * self.rows, inside)), T.Then():
                vector = T.bind(v.load(buffer, place - i * self.rows, column, lanes=lanes))
                v.store(vector, held, 0, lanes=lanes)
        return T.bind(v.load(held, 0, lanes=lanes))


@dataclass(frozen=True, slots=True)
class Int4:
    """q_weight u32[n, k / 8], q_scale [n, k / 32]: w = (code - 7) scale; a unit is a group."""

    n: int
    k: int
    scale_dtype: str
    most: int | None = None  # bytes of a buffer that a kernel sees

    @property
    def span(self) -> int:
        return GROUP

    @property
    def piece(self) -> int:
        return NIBBLES

    @property
    def registers(self) -> int:
        return GROUP // NIBBLES + 1

    @property
    def shrinks(self) -> tuple[float, ...]:
        return tuple(16.0**-j for j in range(UNSHIFTED))

    @property
    def codes(self) -> Ranges:
        """Where the words with the codes are."""
        return Ranges(self.n, self.k // NIBBLES, "uint32", self.most)

    def arguments(self) -> list[Buffer]:
        return [
            *self.codes.arguments("q_weight"),
            v.argument("q_scale", (self.n, self.k // GROUP), self.scale_dtype),
        ]

    def fetch(self, parts: list[Buffer], row: Index, unit: Index) -> Held:
        words = GROUP // NIBBLES
        codes = self.codes.load(parts, row, unit * words, words)
        return codes, T.bind(v.cast_f32(parts[-1][row, unit]))

    def values(self, held: Held, exponent: Expr) -> Iterator[Expr]:
        for word in range(GROUP // NIBBLES):
            yield from _codes(g.lane(held[0], word), exponent)

    def scale(self, held: Held) -> Expr:
        return held[1]

    def fetch_piece(self, parts: list[Buffer], row: Index, piece: Index) -> Held:
        scale = v.cast_f32(parts[-1][row, piece // (GROUP // NIBBLES)])
        return self.codes.load(parts, row, piece, 1), T.bind(scale)

    def decode(self, held: Held) -> list[Expr]:
        word, scale = held
        scales = [scale, *(T.bind(scale * v.const(s)) for s in self.shrinks[1:])]
        return [
            value * scales[i % UNSHIFTED] for i, value in enumerate(_codes(word, _uint32(EXPONENT)))
        ]


@dataclass(frozen=True, slots=True)
class Dense:
    """weight [n, k], float16 or float32."""

    n: int
    k: int
    dtype: str
    most: int | None = None  # bytes of a buffer that a kernel sees

    @property
    def span(self) -> int:
        most = UNIT_BYTES // (2 if self.dtype == "float16" else 4)
        return next(s for s in (8, 4, 2, 1) if s <= most and self.k % s == 0)

    @property
    def piece(self) -> int:
        return min(self.span, g.VECTOR)

    @property
    def registers(self) -> int:
        return self.span // (2 if self.dtype == "float16" and self.span > 1 else 1)

    @property
    def shrinks(self) -> tuple[float, ...]:
        return (1.0,)

    @property
    def values_at(self) -> Ranges:
        """Where the elements are."""
        return Ranges(self.n, self.k, self.dtype, self.most)

    def arguments(self) -> list[Buffer]:
        return self.values_at.arguments("weight")

    def fetch(self, parts: list[Buffer], row: Index, unit: Index) -> Held:
        pieces = self.span // self.piece
        return [
            held for i in range(pieces) for held in self.fetch_piece(parts, row, unit * pieces + i)
        ]

    def values(self, held: Held, exponent: Expr) -> Iterator[Expr]:
        yield from self.decode(held)

    def scale(self, held: Held) -> None:
        return None

    def fetch_piece(self, parts: list[Buffer], row: Index, piece: Index) -> Held:
        return [self.values_at.load(parts, row, piece * self.piece, self.piece)]

    def decode(self, held: Held) -> list[Expr]:
        return [e for vector in held for e in g.floats(vector, self.piece)]


# By kind of scheme: its codec of n rows, k columns, the scheme's float type, and the most bytes.
CODECS: Final[dict[type[Scheme], Callable[[int, int, NormDtype, int | None], Codec]]] = {
    Int4Group: Int4,
    Plain: Dense,
}


def codec_of(scheme: str, n: int, k: int, most: int | None = None) -> Codec:
    """The codec of w[n, k] in the layout `plain`, under a key of quant.SCHEMES.

    Of more than `most` bytes, in that layout's ranges.
    """
    stored = SCHEMES[scheme]
    return CODECS[type(stored)](n, k, stored.norm_dtype, most)


def _codes(word: Expr, exponent: Expr) -> Iterator[Expr]:
    """(code - 7) * 16**(j % 4) for the codes j of a word; `exponent` holds EXPONENT."""
    for half in range(2):
        low = T.bind(word >> _uint32(HALF_WORD)) if half else word
        for j in range(UNSHIFTED):
            bits = (low & _uint32(15 << 4 * j)) | exponent
            yield tirx.reinterpret(v.F32, bits) - v.const(2.0**MANTISSA + ZERO_POINT * 16.0**j)


def _uint32(value: int) -> Expr:
    return tirx.const(value, "uint32")
