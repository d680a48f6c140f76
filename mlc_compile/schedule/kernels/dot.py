"""Four-wide int8 dot products by instruction set: sums i32x16 += codes u8x64 . acts i8x64.

A lane holds four consecutive k of one row, so one step covers 16 rows and 4 k. Codes are
0..15 and activations -127..127, so nothing saturates, and codes may count as signed where
an instruction wants that. The first entry of `DOTS` whose features a target requires is
used; without any there is no int8 path and activations stay float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tvm import tirx

from mlc_compile.schedule.kernels.vector import LANES, Expr
from mlc_compile.target import Target

Dot = Callable[[Expr, Expr, Expr], Expr]


@dataclass(frozen=True, slots=True)
class DotProduct:
    """An instruction: the CPU feature that brings it, and how a step is written with it."""

    feature: str
    apply: Dot


def dot_for(target: Target) -> DotProduct | None:
    """The best instruction that every CPU of the target has."""
    return next((d for d in DOTS if d.feature in target.requires), None)


def _vpdpbusd_512(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    return _intrinsic(
        "llvm.x86.avx512.vpdpbusd.512", "int32x16", sums, _bytes(codes, "u"), _bytes(acts, "")
    )


def _vpdpbusd_256(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    def half(sums: Expr, codes: Expr, acts: Expr) -> Expr:
        return _intrinsic(
            "llvm.x86.avx512.vpdpbusd.256",
            "int32x8",
            sums,
            tirx.reinterpret("uint8x32", codes),
            tirx.reinterpret("int8x32", acts),
        )

    return _halves(half, sums, codes, acts)


def _maddubs_512(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    pairs = _intrinsic(
        "llvm.x86.avx512.pmaddubs.w.512", "int16x32", _bytes(codes, ""), _bytes(acts, "")
    )
    ones = tirx.Broadcast(tirx.IntImm("int16", 1), 2 * LANES)
    return sums + _intrinsic("llvm.x86.avx512.pmaddw.d.512", "int32x16", pairs, ones)


def _maddubs_256(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    def half(sums: Expr, codes: Expr, acts: Expr) -> Expr:
        pairs = _intrinsic(
            "llvm.x86.avx2.pmadd.ub.sw",
            "int16x16",
            tirx.reinterpret("int8x32", codes),
            tirx.reinterpret("int8x32", acts),
        )
        ones = tirx.Broadcast(tirx.IntImm("int16", 1), LANES)
        return sums + _intrinsic("llvm.x86.avx2.pmadd.wd", "int32x8", pairs, ones)

    return _halves(half, sums, codes, acts)


def _sdot(sums: Expr, codes: Expr, acts: Expr) -> Expr:
    def quarter(sums: Expr, codes: Expr, acts: Expr) -> Expr:
        return _intrinsic(
            "llvm.aarch64.neon.sdot.v4i32.v16i8",
            "int32x4",
            sums,
            tirx.reinterpret("int8x16", codes),
            tirx.reinterpret("int8x16", acts),
        )

    return _halves(lambda s, c, a: _halves(quarter, s, c, a), sums, codes, acts)


DOTS: Final = (
    DotProduct("avx512_vnni", _vpdpbusd_512),
    DotProduct("avx512bw", _maddubs_512),
    DotProduct("avx_vnni", _vpdpbusd_256),
    DotProduct("avx2", _maddubs_256),
    DotProduct("asimddp", _sdot),
)


def _intrinsic(name: str, dtype: str, *args: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(dtype, name, *args)


def _bytes(words: Expr, sign: str) -> Expr:
    return tirx.reinterpret(f"{sign}int8x{4 * LANES}", words)


def _halves(part: Dot, sums: Expr, codes: Expr, acts: Expr) -> Expr:
    """Apply `part` to the lower and the upper lanes and join them again."""

    def lower(value: Expr) -> Expr:
        return tirx.vectorlow(_half_type(value), value)

    def upper(value: Expr) -> Expr:
        return tirx.vectorhigh(_half_type(value), value)

    done = [part(side(sums), side(codes), side(acts)) for side in (lower, upper)]
    return tirx.vectorcombine(sums.ty.dtype, *done)


def _half_type(value: Expr) -> str:
    kind, _, lanes = value.ty.dtype.rpartition("x")
    return f"{kind}x{int(lanes) // 2}"
