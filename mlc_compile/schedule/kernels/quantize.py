"""Dynamic int8 quantization of activations, by groups of 32 along k, with what feeds it fused in.

    x[k] = code[k] scale[k // 32],  |code| <= 127,  scale = max|x| / 127 over the group

A feed writes one row of x, a group at a time, into registers; `quantize_row` turns it
into codes (four to an int32, lowest k first), scales, and offsets -7 sum(codes), which is
what the weights' zero point subtracts from a group's sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ZERO_POINT
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.norm import inverse_rms
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index

HALVES = GROUP // LANES
ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low mantissa bits
LEAST: Final = 1e-30  # what the largest counts as at least: zeros must not divide by zero


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a row of activations comes from: parameters, and a vector at a given k.

    `start(buffers, row)` runs once a row and gives `load(k) -> float32x16`.
    """

    k: int
    declare: Callable[[Index], list[Buffer]]
    start: Callable[[list[Buffer], Index], Callable[[Index], Expr]]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Quantized rows: codes i32[.., k/4], scales f32[.., k/32], offsets i32[.., k/32]."""

    codes: Buffer
    scales: Buffer
    offsets: Buffer

    @classmethod
    def declare(cls, m: Index, k: int, names: tuple[str, str, str]) -> "Quantized":
        """The next three parameters of the kernel: m rows of k numbers, [1, m, ..]."""
        codes, scales, offsets = names
        return cls(
            codes=v.argument(codes, (1, m, k // 4), "int32"),
            scales=v.argument(scales, (1, m, k // GROUP)),
            offsets=v.argument(offsets, (1, m, k // GROUP), "int32"),
        )


def plain(k: int, _eps: float = 0.0) -> Feed:
    """x[1, m, k] as it is."""

    def declare(m: Index) -> list[Buffer]:
        return [v.argument("x", (1, m, k))]

    def start(buffers: list[Buffer], row: Index) -> Callable[[Index], Expr]:
        return lambda at: v.load(buffers[0], 0, row, at)

    return Feed(k, declare, start)


def rms_norm(k: int, eps: float) -> Feed:
    """RMSNorm of x[1, m, k] with gamma[k]."""

    def declare(m: Index) -> list[Buffer]:
        return [v.argument("x", (1, m, k)), v.argument("gamma", (k,))]

    def start(buffers: list[Buffer], row: Index) -> Callable[[Index], Expr]:
        x, gamma = buffers
        factor = inverse_rms(x, (0, row), k, eps)
        return lambda at: v.load(x, 0, row, at) * v.splat(factor) * v.load(gamma, at)

    return Feed(k, declare, start)


def swiglu(k: int, _eps: float = 0.0) -> Feed:
    """silu(gate) * up of gate_up[1, m, 2 k]."""

    def declare(m: Index) -> list[Buffer]:
        return [v.argument("gate_up", (1, m, 2 * k))]

    def start(buffers: list[Buffer], row: Index) -> Callable[[Index], Expr]:
        def load(at: Index) -> Expr:
            gate, up = v.load(buffers[0], 0, row, at), v.load(buffers[0], 0, row, k + at)
            return v.silu(gate) * up

        return load

    return Feed(k, declare, start)


# By name in ops.SOURCES: k, and the norm's eps where there is one.
FEEDS: Final[dict[str, Callable[[int, float], Feed]]] = {
    "plain": plain,
    "rms_norm": rms_norm,
    "swiglu": swiglu,
}


def quantize(feed: Feed) -> tirx.PrimFunc:
    """x[1, m, k] of `feed` -> codes i32[1, m, k/4], scales f32[1, m, k/32], offsets i32 alike."""
    m = v.size("m")
    with v.kernel() as builder:
        inputs = feed.declare(m)
        out = Quantized.declare(m, feed.k, ("codes", "scales", "offsets"))
        with T.parallel(0, m) as row:
            quantize_row(feed, inputs, row, out, (0, row))
    return builder.get()


def quantize_row(
    feed: Feed, inputs: list[Buffer], row: Index, out: Quantized, to: tuple[Index, ...]
) -> None:
    """Quantize one row of what `feed` gives into row `to` of `out`."""
    load = feed.start(inputs, row)
    with T.serial(0, feed.k // GROUP) as g:
        x = v.local(HALVES)
        peak = v.local(1, dtype="int32")
        v.store(v.splat_i32(0), peak, 0, 0)
        for half in range(HALVES):
            v.store(load(g * GROUP + half * LANES), x, half, 0)
            magnitude = magnitude_bits(v.load(x, half, 0))
            v.store(tirx.max(v.load(peak, 0, 0), magnitude), peak, 0, 0)
        top = v.local(2, 1)
        v.put(tirx.reinterpret(v.F32, v.largest(peak, 0)), top, 0, 0)
        v.put(top[0, 0] * v.const(1.0 / 127.0), out.scales, *to, g)
        v.put(v.const(127.0) / tirx.max(top[0, 0], v.const(LEAST)), top, 1, 0)
        total = v.local(1, dtype="int32")
        v.store(v.splat_i32(0), total, 0, 0)
        for half in range(HALVES):
            code = nearest(v.load(x, half, 0) * v.splat(top[1, 0]))
            held = v.local(1, dtype="int32")
            v.store(code, held, 0, 0)
            v.store(v.load(total, 0, 0) + v.load(held, 0, 0), total, 0, 0)
            _store_bytes(v.load(held, 0, 0), out.codes, to, g * (GROUP // 4) + half * (LANES // 4))
        v.put(v.total(total, 0) * v.int32(-ZERO_POINT), out.offsets, *to, g)


def magnitude_bits(x: Expr, lanes: int = LANES) -> Expr:
    """The bits of |x| as int32: ordered as |x| is, and a NaN is above all, so it is not lost."""
    return tirx.reinterpret(f"int32x{lanes}", x) & v.splat_i32(0x7FFFFFFF, lanes)


def nearest(x: Expr, lanes: int = LANES) -> Expr:
    """The nearest int32 of |x| < 2**22, ties to even, with one addition."""
    bits = tirx.reinterpret(f"int32x{lanes}", x + v.splat(ROUND, lanes))
    return bits - v.splat_i32(0x4B400000, lanes)  # the bits of ROUND itself


def _store_bytes(code: Expr, codes: Buffer, to: tuple[Index, ...], at: Index) -> None:
    """The low bytes of 16 codes as four int32."""
    narrow = tirx.Cast(f"int8x{LANES}", code)
    words = tirx.reinterpret(f"int32x{LANES // 4}", narrow)
    v.store(words, codes, *to, at, lanes=LANES // 4)
