"""How the arrays of a weight are packed for kernels: pure data movement, values untouched.

A layout takes the parts that a quantization scheme made of w[n, k] and says what arrays
the library wants (`shapes`) and how to get them (`pack`); `unpack` is the inverse.

`rows16` is the packing of every CPU kernel. Rows go in blocks of 16, one vector lane a
row; n is padded with zero rows to a multiple of 16. How a matrix is packed depends on the
parts that its scheme made of it: a line of `ROWS16` for each such set.

    weight f16|f32[n, k]           ->  weight [n/16, k, 16]
    q_weight u32[n, k/8]           ->  packed i32[n/16, pairs, 128 + scales]
    q_scale f16|f32[n, k/32]           pairs = ceil(k/32 / 2)

A matmul over INT4 weights reads one stream: for each pair of groups of 32 k the codes of
both, 64 words each, then their scales, 16 float16 (8 words) or float32 (16 words) each: 9
or 10 whole cache lines. An odd last group is paired with zeros.

Of a group's 64 words, word 16 j + r is lane r, step j: byte b holds the codes of
k = 4 j + b (low nibble) and of k + 16 (high nibble). Masking it with 0x0F0F0F0F thus yields
four consecutive k as bytes, which is what vpdpbusd, sdot and an AMX B tile take.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mlc_compile.artifact import ALIGNMENT, Part

Array = NDArray[Any]
Parts = dict[str, Array]
Shapes = dict[str, tuple[tuple[int, ...], str]]  # suffix -> (shape, dtype)

GROUP: Final = 32  # consecutive k that share a scale: of INT4 weights, and of int8 activations
WIDE: Final = 4 * GROUP  # the same of activations in prompts, where the kernel takes that
NIBBLES: Final = 8  # INT4 codes in a word
ZERO_POINT: Final = 7  # the code that stands for 0, and the largest magnitude of code - 7

ROWS: Final = 16
GROUP_WORDS: Final = ROWS * GROUP // NIBBLES  # int32 words of a group's codes in a block


class Layout(Protocol):
    """A packing; `name` is its key in `LAYOUTS`."""

    @property
    def name(self) -> str:
        """The key in `LAYOUTS`, in the weight plan and in `Target.layout`."""

    def shapes(self, neutral: Shapes) -> Shapes:
        """Packed shapes and dtypes, in parameter order."""

    def pack(self, parts: Parts) -> Parts:
        """Packed arrays of a weight's parts, contiguous."""

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        """The parts of shapes `neutral` that `packed` was made of."""


class Packing(Protocol):
    """What a layout does with matrices of one set of parts."""

    def shapes(self, neutral: Shapes) -> Shapes:
        """As `Layout.shapes`."""

    def pack(self, parts: Parts) -> Parts:
        """As `Layout.pack`."""

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        """As `Layout.unpack`."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """weight f16|f32[n, k] -> [n/16, k, 16]."""

    def shapes(self, neutral: Shapes) -> Shapes:
        (n, k), dtype = neutral["weight"]
        return {"weight": ((_blocks(n), k, ROWS), dtype)}

    def pack(self, parts: Parts) -> Parts:
        return {"weight": _to_lanes(parts["weight"])}

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        (n, _), _ = neutral["weight"]
        return {"weight": _from_lanes(packed["weight"])[:n]}


@dataclass(frozen=True, slots=True)
class Int4Stream:
    """q_weight u32[n, k/8] and q_scale f16|f32[n, k/32] -> packed: see the module's head."""

    def shapes(self, neutral: Shapes) -> Shapes:
        (n, groups), dtype = neutral["q_scale"]
        return {"packed": ((_blocks(n), _pairs(groups), pair_words(dtype)), "int32")}

    def pack(self, parts: Parts) -> Parts:
        codes = _to_words(_pad_rows(parts["q_weight"]))
        scales = _to_lanes(parts["q_scale"]).view("<i4")  # (block, group, words)
        paired = [_paired(codes), _paired(scales)]
        return {"packed": np.concatenate(paired, axis=-1)}

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        (n, groups), dtype = neutral["q_scale"]
        blocks, pairs, _ = packed["packed"].shape
        codes = packed["packed"][..., : 2 * GROUP_WORDS].reshape(blocks, 2 * pairs, 4, ROWS)
        scales = np.ascontiguousarray(packed["packed"][..., 2 * GROUP_WORDS :]).view(dtype)
        scales = scales.reshape(blocks, 2 * pairs, ROWS)
        return {
            "q_weight": _from_words(codes[:, :groups])[:n],
            "q_scale": _from_lanes(scales[:, :groups])[:n],
        }


ROWS16: Final[dict[frozenset[str], Packing]] = {  # by a scheme's parts
    frozenset({"weight"}): Lanes(),
    frozenset({"q_weight", "q_scale"}): Int4Stream(),
}


@dataclass(frozen=True, slots=True)
class Rows16:
    """Blocks of 16 rows, a row a lane: see the module's head."""

    name: str = "rows16"

    def shapes(self, neutral: Shapes) -> Shapes:
        return ROWS16[frozenset(neutral)].shapes(neutral)

    def pack(self, parts: Parts) -> Parts:
        return ROWS16[frozenset(parts)].pack(parts)

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        return ROWS16[frozenset(neutral)].unpack(packed, neutral)


@dataclass(frozen=True, slots=True)
class Plain:
    """As stored: a row after another, which is what the threads of a GPU read side by side."""

    name: str = "plain"

    def shapes(self, neutral: Shapes) -> Shapes:
        return dict(neutral)

    def pack(self, parts: Parts) -> Parts:
        return {suffix: np.ascontiguousarray(a) for suffix, a in parts.items()}

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        return {suffix: packed[suffix] for suffix in neutral}


@dataclass(frozen=True, slots=True)
class Ranges:
    """`plain`, the first part cut into `count` ranges of rows: for APIs that show a kernel less.

    q_weight u32[n, k/8]  ->  q_weight_0 u32[r, k/8], q_weight_1, .. with r = ceil(n / count)
    """

    count: int

    @property
    def name(self) -> str:
        """plain2, plain3, .."""
        return f"{Plain().name}{self.count}"

    def shapes(self, neutral: Shapes) -> Shapes:
        suffix, ((n, *columns), dtype) = next(iter(neutral.items()))
        rows = range_rows(n, self.count)
        cut = {
            f"{suffix}_{i}": ((min(rows, n - i * rows), *columns), dtype) for i in range(self.count)
        }
        return {**cut, **{s: neutral[s] for s in neutral if s != suffix}}

    def pack(self, parts: Parts) -> Parts:
        suffix, whole = next(iter(parts.items()))
        rows = range_rows(len(whole), self.count)
        cut = {f"{suffix}_{i}": whole[i * rows : (i + 1) * rows] for i in range(self.count)}
        rest = {s: a for s, a in parts.items() if s != suffix}
        return {s: np.ascontiguousarray(a) for s, a in {**cut, **rest}.items()}

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        suffix = next(iter(neutral))
        whole = np.concatenate([packed[f"{suffix}_{i}"] for i in range(self.count)])
        return {s: whole if s == suffix else packed[s] for s in neutral}


@dataclass(frozen=True, slots=True)
class Wide:
    """float32 as stored or widened, for vectors that kernels read as float32 (norm gammas)."""

    name: str = "wide"

    def shapes(self, neutral: Shapes) -> Shapes:
        return {suffix: (shape, "float32") for suffix, (shape, _) in neutral.items()}

    def pack(self, parts: Parts) -> Parts:
        return {suffix: np.ascontiguousarray(a, np.float32) for suffix, a in parts.items()}

    def unpack(self, packed: Parts, neutral: Shapes) -> Parts:
        return {suffix: a.astype(neutral[suffix][1]) for suffix, a in packed.items()}


MOST_RANGES: Final = 8
_CUT: Final = tuple(Ranges(count) for count in range(2, MOST_RANGES + 1))
_ALL: Final[tuple[Layout, ...]] = (Rows16(), Plain(), Wide(), *_CUT)
LAYOUTS: Final[dict[str, Layout]] = {x.name: x for x in _ALL}


def range_rows(n: int, count: int) -> int:
    """Rows of each of `count` ranges but the last."""
    return -(-n // count)


def ranges_for(n: int, row_bytes: int, most: int | None) -> int:
    """Into how many ranges n rows must be cut so that none has more than `most` bytes.

    1, and thus too much, where even MOST_RANGES are not enough.
    """
    if most is None:
        return 1
    counts = range(1, MOST_RANGES + 1)
    return next((c for c in counts if range_rows(n, c) * row_bytes <= most), 1)


def pair_words(scale_dtype: str) -> int:
    """int32 words of a pair of groups in `rows16`: codes, then scales."""
    return 2 * (GROUP_WORDS + scale_words(scale_dtype))


def scale_words(scale_dtype: str) -> int:
    """int32 words of one group's scales: one for each of 16 rows."""
    return ROWS * np.dtype(scale_dtype).itemsize // 4


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


def _pairs(groups: int) -> int:
    return -(-groups // 2)


def _pad_rows(a: Array) -> Array:
    missing = -a.shape[0] % ROWS
    return np.pad(a, ((0, missing), (0, 0))) if missing else a


def _paired(a: Array) -> Array:
    """(block, group, words) -> (block, pair, 2 words), an odd last group beside zeros."""
    blocks, groups, words = a.shape
    if groups % 2:
        a = np.pad(a, ((0, 0), (0, 1), (0, 0)))
    return a.reshape(blocks, _pairs(groups), 2 * words)


def _to_lanes(a: Array) -> Array:
    """[n, c] -> [n/16, c, 16]."""
    padded = _pad_rows(a)
    n, c = padded.shape
    return np.ascontiguousarray(padded.reshape(n // ROWS, ROWS, c).transpose(0, 2, 1))


def _from_lanes(a: Array) -> Array:
    blocks, c, _ = a.shape
    return a.transpose(0, 2, 1).reshape(blocks * ROWS, c)


def _to_words(a: Array) -> Array:
    """u32[n, k/8] -> i32[n/16, k/32, 64]."""
    n, words = a.shape
    groups = words * NIBBLES // GROUP
    shifts = np.arange(NIBBLES, dtype=np.uint32) * 4
    codes = ((a[:, :, None] >> shifts) & 15).astype(np.uint8)
    # (block, row, group, half, step, byte) -> (block, group, half, step, row, byte)
    codes = codes.reshape(n // ROWS, ROWS, groups, 2, 4, 4).transpose(0, 2, 3, 4, 1, 5)
    packed = codes[:, :, 0] | (codes[:, :, 1] << 4)
    return np.ascontiguousarray(packed).view("<i4").reshape(n // ROWS, groups, GROUP_WORDS)


def _from_words(a: Array) -> Array:
    """i32[n/16, k/32, 4, 16] -> u32[n, k/8]."""
    blocks, groups, _, _ = a.shape
    packed = np.ascontiguousarray(a).view(np.uint8).reshape(blocks, groups, 4, ROWS, 4)
    codes = np.stack([packed & 15, packed >> 4], axis=2).transpose(0, 4, 1, 2, 3, 5)
    codes = codes.reshape(blocks * ROWS, groups * GROUP // NIBBLES, NIBBLES).astype(np.uint32)
    shifts = np.arange(NIBBLES, dtype=np.uint32) * 4
    words: Array = np.bitwise_or.reduce(codes << shifts, axis=-1)
    return words
