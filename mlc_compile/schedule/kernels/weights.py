"""The weight side of matmul kernels: how `rows16` parts become float32 vectors of 16 rows.

A `Codec` declares the parameters of one storage and yields, for a block of rows and a
group along k, one vector for each k; kernels are written once against it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tvm import tirx

from mlc_compile.layout import GROUP, GROUP_WORDS, ROWS, ZERO_POINT, pair_words, scale_words
from mlc_compile.quant import SCHEMES
from mlc_compile.quant.int4 import Int4Group
from mlc_compile.quant.plain import Plain
from mlc_compile.quant.scheme import NormDtype, Scheme
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index


class Codec(Protocol):
    """One storage of w[n, k] in `blocks` blocks of 16 rows; `group` divides k."""

    @property
    def blocks(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def group(self) -> int: ...

    def arguments(self) -> list[Buffer]:
        """Declare the kernel's weight parameters."""

    def scale(self, parts: list[Buffer], block: Index, group: Index) -> Expr | None:
        """What the group's vectors must still be multiplied by, if anything."""

    def each(
        self, parts: list[Buffer], block: Index, group: Index, use: Callable[[int, Expr], None]
    ) -> None:
        """Call `use(k within the group, unscaled float32x16 of the block's rows)` for every k."""

    def row(self, parts: list[Buffer], row: Index, group: Index, kk: int) -> Expr:
        """One scaled float32: w[row, group * self.group + kk]."""


@dataclass(frozen=True, slots=True)
class Int4:
    """packed i32[n/16, pairs, words] of `layout.Rows16`; w = (code - 7) scale."""

    blocks: int
    k: int
    scale_dtype: str

    @property
    def group(self) -> int:
        return GROUP

    def arguments(self) -> list[Buffer]:
        pairs = -(-self.k // (2 * GROUP))
        return [v.argument("packed", (self.blocks, pairs, pair_words(self.scale_dtype)), "int32")]

    def word(self, parts: list[Buffer], block: Index, group: Index, step: int) -> Expr:
        """int32x16: the codes of steps `step` (low nibbles) and `step` + 4 (high) of 16 rows."""
        return v.load(parts[0], block, group // 2, group % 2 * GROUP_WORDS + step * ROWS)

    def scale(self, parts: list[Buffer], block: Index, group: Index) -> Expr:
        words = scale_words(self.scale_dtype)
        held = v.load(parts[0], block, group // 2, self._scales(group), lanes=words)
        return v.to_f32(tirx.reinterpret(f"{self.scale_dtype}x{ROWS}", held))

    def ask(self, parts: list[Buffer], block: Index, pair: Index, *, cache: int = 2) -> None:
        """Ask for a pair of groups; past a block's last pair the next block's lie."""
        for word in range(0, pair_words(self.scale_dtype), v.LINE_BYTES // 4):
            v.prefetch(parts[0], block, pair, word, cache=cache)

    def each(
        self, parts: list[Buffer], block: Index, group: Index, use: Callable[[int, Expr], None]
    ) -> None:
        for step in range(4):
            word = self.word(parts, block, group, step)
            for byte in range(4):
                for half in range(2):
                    code = (word >> v.splat_i32(8 * byte + 4 * half)) & v.splat_i32(15)
                    use(16 * half + 4 * step + byte, v.to_f32(code - v.splat_i32(ZERO_POINT)))

    def row(self, parts: list[Buffer], row: Index, group: Index, kk: int) -> Expr:
        half, step, byte = kk // 16, kk % 16 // 4, kk % 4
        block, lane, pair = row // ROWS, row % ROWS, group // 2
        word = parts[0][block, pair, group % 2 * GROUP_WORDS + step * ROWS + lane]
        code = (word >> v.int32(8 * byte + 4 * half)) & v.int32(15)
        return v.cast_f32(code - v.int32(ZERO_POINT)) * self._row_scale(
            parts[0], block, group, lane
        )

    def _scales(self, group: Index) -> Index:
        return 2 * GROUP_WORDS + group % 2 * scale_words(self.scale_dtype)

    def _row_scale(self, packed: Buffer, block: Index, group: Index, lane: Index) -> Expr:
        start, pair = self._scales(group), group // 2
        if self.scale_dtype == v.F32:
            return tirx.reinterpret(v.F32, packed[block, pair, start + lane])
        both = packed[block, pair, start + lane // 2]  # two float16, the even row's below
        bits = tirx.Cast("uint16", (both >> (lane % 2 * 16)) & v.int32(0xFFFF))
        return v.cast_f32(tirx.reinterpret(self.scale_dtype, bits))


@dataclass(frozen=True, slots=True)
class Dense:
    """float16 or float32 [n/16, k, 16]."""

    blocks: int
    k: int
    dtype: str

    @property
    def group(self) -> int:
        return next(g for g in (32, 16, 8, 4, 2, 1) if self.k % g == 0)

    def arguments(self) -> list[Buffer]:
        return [v.argument("weight", (self.blocks, self.k, ROWS), self.dtype)]

    def scale(self, parts: list[Buffer], block: Index, group: Index) -> None:
        return None

    def each(
        self, parts: list[Buffer], block: Index, group: Index, use: Callable[[int, Expr], None]
    ) -> None:
        for kk in range(self.group):
            use(kk, v.to_f32(v.load(parts[0], block, group * self.group + kk, 0)))

    def row(self, parts: list[Buffer], row: Index, group: Index, kk: int) -> Expr:
        return v.cast_f32(parts[0][row // ROWS, group * self.group + kk, row % ROWS])


# By kind of scheme: its codec of blocks of rows, k columns, and the scheme's float type.
CODECS: Final[dict[type[Scheme], Callable[[int, int, NormDtype], Codec]]] = {
    Int4Group: Int4,
    Plain: Dense,
}


def codec_of(scheme: str, n: int, k: int) -> Codec:
    """The codec of w[n, k], packed in rows16, under a key of quant.SCHEMES."""
    stored = SCHEMES[scheme]
    return CODECS[type(stored)](-(-n // ROWS), k, stored.norm_dtype)
