"""INT4 weights of several groups of k as int8 with one scale, so that integers sum over all.

    (code - 7) s_g  =  (byte - zero) S  within 0.52 S,    S = max|s_g| 8 / 127

over the groups that share S: at most 0.033 of the largest of their scales, where INT4 itself is
off by up to half a scale. S leaves room for code 15, which no scheme writes but four bits hold.
A scale becomes r, s_g / S in units of 2**-8, and a byte is zero plus the nearest integer to
(code - 7) r in those units. All of it fits 16 bits: |(code - 7) r| is at most 8 * 4064.
"""

from collections.abc import Callable
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import ZERO_POINT
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.int8 import STEPS, steps_of
from mlc_compile.schedule.kernels.quantize import magnitude_bits, nearest
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4

LARGEST: Final = 127 / (15 - ZERO_POINT)  # of s_g / S
FRACTION: Final = 8  # bits of a ratio below 1, and of a product
SMALLEST: Final = 2e-35  # of max|s_g|: below it weights shrink; 4064 / 2e-35 is still finite
LOW_BYTES: Final = 0x00FF00FF

Put = Callable[[Index, Expr], None]  # the step, counted over all groups, and its bytes


def requantize(
    codec: Int4, parts: list[Buffer], block: Index, groups: tuple[Expr, int], zero: int, put: Put
) -> Expr:
    """S of a block's 16 rows over `groups`, (the first, how many); `put` takes their bytes."""
    first, count = groups
    top = v.local(2)
    v.store(_largest(codec, parts, block, groups), top, 0, 0)
    least = v.splat(SMALLEST)
    v.store(v.splat(LARGEST * 2**FRACTION) / tirx.max(v.load(top, 0, 0), least), top, 1, 0)
    with T.serial(0, count) as i:
        scale = codec.scale(parts, block, first + i)
        ratio, begin = v.local(1, dtype="int32"), v.local(1, dtype="int32")
        v.store(nearest(scale * v.load(top, 1, 0)), ratio, 0, 0)
        zero_point = v.splat_i32((zero << FRACTION) + 2 ** (FRACTION - 1))  # rounds to the nearest
        v.store(zero_point - v.load(ratio, 0, 0) * v.splat_i32(ZERO_POINT), begin, 0, 0)
        for held in (ratio, begin):
            v.store(_twice(v.load(held, 0, 0)), held, 0, 0)
        for step, codes in steps_of(codec, parts, (block, first + i)):
            scaled = _high_bytes(codes, v.load(ratio, 0, 0), v.load(begin, 0, 0))
            put(i * STEPS + step, scaled)
    return v.load(top, 0, 0) * v.splat(1 / LARGEST)


def _largest(codec: Int4, parts: list[Buffer], block: Index, groups: tuple[Expr, int]) -> Expr:
    """max|s_g| of 16 rows; a NaN is above all, and so is not lost."""
    first, count = groups
    bits = v.local(1, dtype="int32")
    v.store(v.splat_i32(0), bits, 0, 0)
    for i in range(count):
        magnitude = magnitude_bits(codec.scale(parts, block, first + i))
        v.store(tirx.max(v.load(bits, 0, 0), magnitude), bits, 0, 0)
    return tirx.reinterpret(f"{v.F32}x{LANES}", v.load(bits, 0, 0))


def _high_bytes(codes: Expr, ratio: Expr, begin: Expr) -> Expr:
    """The high bytes of code * ratio + begin, for each of four codes in a lane."""
    low = v.splat_i32(LOW_BYTES)
    even, odd = (_scaled(c & low, ratio, begin) for c in (codes, codes >> v.splat_i32(8)))
    return ((even >> v.splat_i32(8)) & low) | (odd & ~low)


def _scaled(shorts: Expr, ratio: Expr, begin: Expr) -> Expr:
    """shorts * ratio + begin in 16 bits each, two to a lane."""
    kind = f"uint16x{2 * LANES}"
    a, b, c = (tirx.reinterpret(kind, x) for x in (shorts, ratio, begin))
    return tirx.reinterpret(f"int32x{LANES}", a * b + c)


def _twice(x: Expr) -> Expr:
    """The low 16 bits of each lane, in both halves of it."""
    return (x & v.splat_i32(0xFFFF)) | (x << v.splat_i32(16))
