"""The weight side of matmul kernels: how `rows16` parts become float32 vectors of 16 rows.

A `Codec` declares the parameters of one storage and yields, for a block of rows and a
group along k, one vector for each k; kernels are written once against it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlc_compile.layout import GROUP, ROWS
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
    """Codes i32[n/16, k/32, 4, 16] and scales [n/16, k/32, 16]; w = (code - 7) scale."""

    blocks: int
    k: int
    scale_dtype: str

    @property
    def group(self) -> int:
        return GROUP

    def arguments(self) -> list[Buffer]:
        groups = self.k // GROUP
        return [
            v.argument("codes", (self.blocks, groups, 4, ROWS), "int32"),
            v.argument("scales", (self.blocks, groups, ROWS), self.scale_dtype),
        ]

    def scale(self, parts: list[Buffer], block: Index, group: Index) -> Expr:
        return v.to_f32(v.load(parts[1], block, group, 0))

    def each(
        self, parts: list[Buffer], block: Index, group: Index, use: Callable[[int, Expr], None]
    ) -> None:
        for step in range(4):
            word = v.load(parts[0], block, group, step, 0)
            for byte in range(4):
                for half in range(2):
                    code = (word >> v.splat_i32(8 * byte + 4 * half)) & v.splat_i32(15)
                    use(16 * half + 4 * step + byte, v.to_f32(code - v.splat_i32(7)))

    def row(self, parts: list[Buffer], row: Index, group: Index, kk: int) -> Expr:
        half, step, byte = kk // 16, kk % 16 // 4, kk % 4
        block, lane = row // ROWS, row % ROWS
        word = parts[0][block, group, step, lane]
        code = (word >> v.int32(8 * byte + 4 * half)) & v.int32(15)
        return v.cast_f32(code - v.int32(7)) * v.cast_f32(parts[1][block, group, lane])


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


def codec_of(types: Sequence[tuple[Sequence[int], str]]) -> Codec:
    """The codec for packed parts of these shapes and dtypes."""
    (shape, dtype), *rest = types
    if rest:
        return Int4(blocks=shape[0], k=shape[1] * GROUP, scale_dtype=rest[0][1])
    return Dense(blocks=shape[0], k=shape[1], dtype=dtype)
