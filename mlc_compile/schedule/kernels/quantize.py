"""Dynamic int8 quantization of activations, by groups along k, with what feeds it fused in.

    x[k] = code[k] scale[k // group],  |code| <= 127,  scale = max|x| / 127 over the group

A feed writes one row of x, a group at a time, into registers; `quantize_row` turns it
into codes (four to an int32, lowest k first), scales, and offsets -zero sum(codes), which is
what the weights' zero point subtracts from a group's sum. `ops.Grouping` has both numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import NARROW, Grouping
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.elementary import silu
from mlc_compile.schedule.kernels.norm import inverse_rms
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index

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
    """Quantized rows: codes i32[.., k/4], scales f32[.., k/group], offsets i32[.., k/group]."""

    codes: Buffer
    scales: Buffer
    offsets: Buffer

    @classmethod
    def declare(cls, m: Index, k: int, group: int, names: tuple[str, str, str]) -> "Quantized":
        """The next three parameters of the kernel: m rows of k numbers, [1, m, ..]."""
        codes, scales, offsets = names
        return cls(
            codes=v.argument(codes, (1, m, k // 4), "int32"),
            scales=v.argument(scales, (1, m, k // group)),
            offsets=v.argument(offsets, (1, m, k // group), "int32"),
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
            return silu(gate) * up

        return load

    return Feed(k, declare, start)


# By name in ops.SOURCES: k, and the norm's eps where there is one.
FEEDS: Final[dict[str, Callable[[int, float], Feed]]] = {
    "plain": plain,
    "rms_norm": rms_norm,
    "swiglu": swiglu,
}


def quantize(feed: Feed, grouping: Grouping = NARROW) -> tirx.PrimFunc:
    """x[1, m, k] of `feed` -> codes i32[1, m, k/4], scales f32 and offsets i32[1, m, k/group]."""
    m = v.size("m")
    with v.kernel() as builder:
        inputs = feed.declare(m)
        out = Quantized.declare(m, feed.k, grouping.group, ("codes", "scales", "offsets"))
        with T.parallel(0, m) as row:
            quantize_row(feed, inputs, row, out, (0, row), grouping)
    return builder.get()


def quantize_row(
    feed: Feed,
    inputs: list[Buffer],
    row: Index,
    out: Quantized,
    to: tuple[Index, ...],
    grouping: Grouping = NARROW,
) -> None:
    """Quantize one row of what `feed` gives into row `to` of `out`."""
    load, group = feed.start(inputs, row), grouping.group
    vectors = group // LANES
    with T.serial(0, feed.k // group) as g:
        x = v.local(vectors)
        peak = v.local(1, dtype="int32")
        v.store(v.splat_i32(0), peak, 0, 0)
        for i in range(vectors):
            v.store(load(g * group + i * LANES), x, i, 0)
            magnitude = magnitude_bits(v.load(x, i, 0))
            v.store(tirx.max(v.load(peak, 0, 0), magnitude), peak, 0, 0)
        top = v.local(2, 1)
        v.put(tirx.reinterpret(v.F32, v.largest(peak, 0)), top, 0, 0)
        v.put(top[0, 0] * v.const(1.0 / 127.0), out.scales, *to, g)
        v.put(v.const(127.0) / tirx.max(top[0, 0], v.const(LEAST)), top, 1, 0)
        total = v.local(1, dtype="int32")
        v.store(v.splat_i32(0), total, 0, 0)
        for i in range(vectors):
            code = nearest(v.load(x, i, 0) * v.splat(top[1, 0]))
            held = v.local(1, dtype="int32")
            v.store(code, held, 0, 0)
            v.store(v.load(total, 0, 0) + v.load(held, 0, 0), total, 0, 0)
            _store_bytes(v.load(held, 0, 0), out.codes, to, g * (group // 4) + i * (LANES // 4))
        v.put(v.total(total, 0) * v.int32(-grouping.zero), out.offsets, *to, g)


def magnitude_bits(x: Expr, lanes: int = LANES) -> Expr:
    """The bits of |x| as int32: ordered as |x| is, and a NaN is above all, so it is not lost."""
    return tirx.reinterpret(f"int32x{lanes}", x) & v.splat_i32(0x7FFFFFFF, lanes)


def nearest(x: Expr, lanes: int = LANES) -> Expr:
    """The nearest int32 of |x| < 2**22, ties to even, with one addition."""
    bits = tirx.reinterpret(f"int32x{lanes}", x + v.splat(v.WHOLE, lanes))
    return bits - v.splat_i32(0x4B400000, lanes)  # the bits of WHOLE itself


def _store_bytes(code: Expr, codes: Buffer, to: tuple[Index, ...], at: Index) -> None:
    """The low bytes of 16 codes as four int32."""
    narrow = tirx.Cast(f"int8x{LANES}", code)
    words = tirx.reinterpret(f"int32x{LANES // 4}", narrow)
    v.store(words, codes, *to, at, lanes=LANES // 4)
