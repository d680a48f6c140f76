"""How the arrays of a weight are packed for kernels: pure data movement, values untouched.

A layout takes the parts that a quantization scheme made of w[n, k] and says what shapes
the library wants (`shapes`) and how to get them (`pack`); `unpack(pack(x)) == x`.

`rows16` is the packing of every CPU kernel. Rows go in blocks of 16, one vector lane a
row; n is padded with zero rows to a multiple of 16.

    q_weight  u32[n, k/8]      -> i32[n/16, k/32, 4, 16]
    q_scale   f16|f32[n, k/32] -> [n/16, k/32, 16]
    weight    f16|f32[n, k]    -> [n/16, k, 16]

In a word of `q_weight`, lane r and step j: byte b holds the codes of k = 32 g + 4 j + b
(low nibble) and of k + 16 (high nibble). Masking a word with 0x0F0F0F0F thus yields four
consecutive k as bytes, which is what vpdpbusd, sdot and an AMX B tile take.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mlc_compile.artifact import ALIGNMENT, Part

Array = NDArray[Any]
Parts = dict[str, Array]
Shapes = dict[str, tuple[tuple[int, ...], str]]  # suffix -> (shape, dtype)

ROWS: Final = 16
GROUP: Final = 32  # codes along k that share a scale
NIBBLES: Final = 8


class Layout(Protocol):
    """A packing; `name` is its key in `LAYOUTS`."""

    @property
    def name(self) -> str:
        """The key in `LAYOUTS`, in the weight plan and in `Target.layout`."""

    def shapes(self, neutral: Shapes) -> Shapes:
        """Packed shapes and dtypes of the parts, in parameter order."""

    def pack(self, parts: Parts) -> Parts:
        """Packed arrays of the parts, contiguous."""

    def unpack(self, parts: Parts, rows: int) -> Parts:
        """The inverse of `pack`; `rows` is n, without the padding."""


@dataclass(frozen=True, slots=True)
class Rows16:
    """Blocks of 16 rows, a row a lane: see the module's head."""

    name: str = "rows16"

    def shapes(self, neutral: Shapes) -> Shapes:
        return {
            suffix: (_ROWS16[suffix].shape(shape), _ROWS16[suffix].dtype(dtype))
            for suffix, (shape, dtype) in neutral.items()
        }

    def pack(self, parts: Parts) -> Parts:
        return {suffix: _ROWS16[suffix].pack(_pad_rows(a)) for suffix, a in parts.items()}

    def unpack(self, parts: Parts, rows: int) -> Parts:
        return {suffix: _ROWS16[suffix].unpack(a)[:rows] for suffix, a in parts.items()}


@dataclass(frozen=True, slots=True)
class Wide:
    """float32 as stored or widened, for vectors that kernels read as float32 (norm gammas)."""

    name: str = "wide"

    def shapes(self, neutral: Shapes) -> Shapes:
        return {suffix: (shape, "float32") for suffix, (shape, _) in neutral.items()}

    def pack(self, parts: Parts) -> Parts:
        return {suffix: np.ascontiguousarray(a, np.float32) for suffix, a in parts.items()}

    def unpack(self, parts: Parts, rows: int) -> Parts:
        return {suffix: a[:rows] for suffix, a in parts.items()}


LAYOUTS: Final[dict[str, Layout]] = {x.name: x for x in (Rows16(), Wide())}


@dataclass(frozen=True, slots=True)
class _Codes:
    def shape(self, neutral: tuple[int, ...]) -> tuple[int, ...]:
        n, words = neutral
        return (_blocks(n), words * NIBBLES // GROUP, 4, ROWS)

    def dtype(self, neutral: str) -> str:
        assert neutral == "uint32"
        return "int32"

    def pack(self, a: Array) -> Array:
        n, words = a.shape
        groups = words * NIBBLES // GROUP
        shifts = np.arange(NIBBLES, dtype=np.uint32) * 4
        codes = ((a[:, :, None] >> shifts) & 15).astype(np.uint8)
        # (block, row, group, half, step, byte) -> (block, group, half, step, row, byte)
        codes = codes.reshape(n // ROWS, ROWS, groups, 2, 4, 4).transpose(0, 2, 3, 4, 1, 5)
        packed = codes[:, :, 0] | (codes[:, :, 1] << 4)
        return np.ascontiguousarray(packed).view("<i4").reshape(n // ROWS, groups, 4, ROWS)

    def unpack(self, a: Array) -> Array:
        blocks, groups, _, _ = a.shape
        packed = np.ascontiguousarray(a).view(np.uint8).reshape(blocks, groups, 4, ROWS, 4)
        codes = np.stack([packed & 15, packed >> 4], axis=2).transpose(0, 4, 1, 2, 3, 5)
        codes = codes.reshape(blocks * ROWS, groups * GROUP // NIBBLES, NIBBLES).astype(np.uint32)
        shifts = np.arange(NIBBLES, dtype=np.uint32) * 4
        words: Array = np.bitwise_or.reduce(codes << shifts, axis=-1)
        return words


@dataclass(frozen=True, slots=True)
class _Columns:
    """[n, c] -> [n/16, c, 16]."""

    def shape(self, neutral: tuple[int, ...]) -> tuple[int, ...]:
        n, c = neutral
        return (_blocks(n), c, ROWS)

    def dtype(self, neutral: str) -> str:
        return neutral

    def pack(self, a: Array) -> Array:
        n, c = a.shape
        return np.ascontiguousarray(a.reshape(n // ROWS, ROWS, c).transpose(0, 2, 1))

    def unpack(self, a: Array) -> Array:
        blocks, c, _ = a.shape
        return a.transpose(0, 2, 1).reshape(blocks * ROWS, c)


_ROWS16: Final[dict[str, _Codes | _Columns]] = {
    "q_weight": _Codes(),
    "q_scale": _Columns(),
    "weight": _Columns(),
}


def place(name: str, shapes: Shapes, offset: int) -> tuple[tuple[Part, ...], int]:
    """Lay parts one after another from `offset`, each aligned; gives them and the end.

    `name` is the weight's, without its suffix.
    """
    parts = []
    for suffix, (shape, dtype) in shapes.items():
        start = -(-offset // ALIGNMENT) * ALIGNMENT
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        parts.append(
            Part(name=f"{name}.{suffix}", dtype=dtype, shape=shape, offset=start, nbytes=nbytes)
        )
        offset = start + nbytes
    return tuple(parts), offset


def _blocks(n: int) -> int:
    return -(-n // ROWS)


def _pad_rows(a: Array) -> Array:
    missing = -a.shape[0] % ROWS
    return np.pad(a, ((0, missing), (0, 0))) if missing else a
