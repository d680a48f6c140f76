"""Four-wide int8 dot products by instruction set: sums of 16 rows += codes u8x64 . acts i8x64.

A lane holds four consecutive k of one row, so one step covers 16 rows and 4 k. Codes are
0..15 and activations -127..127, so nothing saturates, and codes may count as signed where
an instruction wants that. An instruction with a `zero` takes weights of all 8 bits too;
vpmaddubsw has none, as it would saturate pairs of products at 16 bits. Those pairs are summed
as they are over a group of k and widened once: 8 steps of 2 * 15 * 127 are 30480, and 16 bits
hold 32767. The first entry of `DOTS` whose features a target requires is used; without any
there is no int8 path and activations stay float32.

`smmla` takes two rows of activations: it multiplies matrices, for `int8_gemm_pairs` alone.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tvm import tirx

from mlc_compile.layout import WIDE
from mlc_compile.ops import NARROW, Grouping
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Expr
from mlc_compile.target import Target

Dot = Callable[[Expr, Expr, Expr], Expr]
DEPTH: Final = 4  # k of a step, except where an instruction multiplies matrices


@dataclass(frozen=True, slots=True)
class DotProduct:
    """An instruction: the CPU feature that brings it, and how a step is written with it."""

    feature: str
    apply: Dot
    depth: int = DEPTH  # products that a row takes in a step
    zero: int | None = None  # the byte for 0 in weights of 8 bits; None: INT4 codes only
    widen: Callable[[Expr], Expr] | None = None  # sums of int16 pairs, two a row, to int32

    def sums(self, count: int) -> v.Registers:
        """`count` vectors of sums of 16 rows, for a group of k at most, all zero."""
        dtype, lanes = self._held
        made = v.Registers.make(count, dtype, lanes)
        for register in range(count):
            zero = tirx.Broadcast(tirx.IntImm(dtype, 0), lanes)
            v.store(zero, *made[register], 0, lanes=lanes)
        return made

    def add(self, sums: v.Registers, register: int, codes: Expr, acts: Expr) -> None:
        """One step of a vector of sums."""
        _, lanes = self._held
        at = sums[register]
        v.store(self.apply(v.load(*at, 0, lanes=lanes), codes, acts), *at, 0, lanes=lanes)

    def total(self, sums: v.Registers, first: int, count: int = 1) -> Expr:
        """int32x16: `count` vectors of sums, added together."""
        _, lanes = self._held
        parts = [v.load(*sums[first + i], 0, lanes=lanes) for i in range(count)]
        added = reduce(operator.add, parts)
        return added if self.widen is None else self.widen(added)

    @property
    def _held(self) -> tuple[str, int]:
        """What sums are kept as: type and lanes."""
        return ("int32", v.LANES) if self.widen is None else ("int16", 2 * v.LANES)


def dot_for(target: Target) -> DotProduct | None:
    """The best instruction that every CPU of the target has."""
    return next((d for d in DOTS if d.feature in target.requires), None)


def fastest_for(target: Target) -> DotProduct | None:
    """The instruction with most products, whatever it takes for its activations."""
    return MATRIX if MATRIX.feature in target.requires else dot_for(target)


def grouping_for(target: Target) -> Grouping:
    """How the kernel for many rows wants its activations: wide, if its weights may have 8 bits."""
    dot = fastest_for(target)
    return NARROW if dot is None or dot.zero is None else Grouping(WIDE, dot.zero)


def _vpdpbusd(bits: int) -> Dot:
    """One instruction: unsigned by signed bytes, added to the sums."""

    def apply(sums: Expr, codes: Expr, acts: Expr) -> Expr:
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        return _intrinsic(name, f"int32x{bits // 32}", sums, _bytes(codes, "u"), _bytes(acts))

    return apply


def _vpmaddubsw(name: str) -> Dot:
    """An instruction, products of bytes to sums of two in int16, and an addition."""

    def apply(sums: Expr, codes: Expr, acts: Expr) -> Expr:
        return sums + _intrinsic(name, sums.ty.dtype, _bytes(codes), _bytes(acts))

    return apply


def _vpmaddwd(name: str) -> Callable[[Expr], Expr]:
    """Sums of two int16 each in int32."""

    def widen(sums: Expr) -> Expr:
        lanes = _lanes(sums)
        ones = tirx.Broadcast(tirx.IntImm("int16", 1), lanes)
        return _intrinsic(name, f"int32x{lanes // 2}", sums, ones)

    return widen


def _sdot(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    return _intrinsic(name, "int32x4", sums, _bytes(codes), _bytes(acts))


def smmla(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    """int32x4, 2 rows of acts by 2 of codes: sums[i, j] += codes[j] . acts[i] over 8 k.

    `codes` and `acts` are int32x4: 8 bytes of a row, then 8 of the other.
    """
    name = "llvm.aarch64.neon.smmla.v4i32.v16i8"
    return _intrinsic(name, "int32x4", sums, _bytes(acts), _bytes(codes))


def _in_halves(part: Callable[..., Expr]) -> Callable[..., Expr]:
    """`part` on the lower and on the upper lanes, joined again."""

    def apply(*operands: Expr) -> Expr:
        low = part(*(tirx.vectorlow(_half_type(x), x) for x in operands))
        high = part(*(tirx.vectorhigh(_half_type(x), x) for x in operands))
        kind = str(low.ty.dtype).rpartition("x")[0]
        return tirx.vectorcombine(f"{kind}x{2 * _lanes(low)}", low, high)

    return apply


ZERO_UNSIGNED: Final = 128
ZERO_SIGNED: Final = 0

DOTS: Final = (
    DotProduct("avx512_vnni", _vpdpbusd(512), zero=ZERO_UNSIGNED),
    DotProduct(
        "avx512bw",
        _vpmaddubsw("llvm.x86.avx512.pmaddubs.w.512"),
        widen=_vpmaddwd("llvm.x86.avx512.pmaddw.d.512"),
    ),
    DotProduct("avx_vnni", _in_halves(_vpdpbusd(256)), zero=ZERO_UNSIGNED),
    DotProduct(
        "avx2",
        _in_halves(_vpmaddubsw("llvm.x86.avx2.pmadd.ub.sw")),
        widen=_in_halves(_vpmaddwd("llvm.x86.avx2.pmadd.wd")),
    ),
    DotProduct("asimddp", _in_halves(_in_halves(_sdot)), zero=ZERO_SIGNED),
)

# Without a zero: its kernel has groups of 32.
MATRIX: Final = DotProduct("i8mm", _in_halves(_in_halves(smmla)), depth=8)


def _intrinsic(name: str, dtype: str, *args: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(dtype, name, *args)


def _bytes(words: Expr, sign: str = "") -> Expr:
    """The int32 lanes of a vector as four times as many bytes."""
    return tirx.reinterpret(f"{sign}int8x{4 * _lanes(words)}", words)


def _half_type(value: Expr) -> str:
    return f"{value.ty.dtype.rpartition('x')[0]}x{_lanes(value) // 2}"


def _lanes(value: Expr) -> int:
    return int(value.ty.dtype.rpartition("x")[2])
