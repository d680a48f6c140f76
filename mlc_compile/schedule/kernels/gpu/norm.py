"""RMSNorm on a GPU, y = x · rsqrt(mean(x²) + eps) · gamma: of a row, or of each head of q and k."""

from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Device

THREADS: Final = 256  # the most for a row: more would wait for each other longer than they save


def rms_norm(k: int, eps: float, rows: int | None, device: Device) -> tirx.PrimFunc:
    """x[1, m, k], gamma[k] -> y[1, m, k], float32; m is `rows`, or symbolic if None.

    A block a row.
    """
    m = v.size("m") if rows is None else rows
    lanes = g.lanes_for(k)
    threads = g.block_threads(k // lanes, min(THREADS, device.threads))
    with v.kernel() as builder:
        x = v.argument("x", (1, m, k))
        gamma = v.argument("gamma", (k,))
        y = v.argument("y", (1, m, k))
        with g.each_block(m, device, threads=threads) as (row, thread):
            factor = _inverse_rms(x, (0, row), 0, k, eps, thread, threads, device)
            with g.each_vector(k, thread, threads, lanes) as at:
                scaled = v.load(x, 0, row, at, lanes=lanes) * v.splat(factor[0], lanes)
                scaled = scaled * v.load(gamma, at, lanes=lanes)
                g.store_as(scaled, y, 0, row, at, lanes=lanes)
    return builder.get()


def qk_norm(a: Attention, dtype: str, rows: int | None, device: Device) -> tirx.PrimFunc:
    """qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d] -> dtype[m, h_q + 2 h_kv, d].

    q and k are normalized per head, v is copied; all are rounded to `dtype`. A block a head.
    """
    m = v.size("m") if rows is None else rows
    heads = a.h_q + 2 * a.h_kv
    lanes = g.lanes_for(a.d)
    threads = g.block_threads(a.d // lanes, device.threads)
    with v.kernel() as builder:
        qkv = v.argument("qkv", (1, m, heads * a.d))
        gamma_q = v.argument("gamma_q", (a.d,))
        gamma_k = v.argument("gamma_k", (a.d,))
        y = v.argument("y", (m, heads, a.d), dtype)
        with g.each_block(m * heads, device, threads=threads) as (block, thread):
            row, head = block // heads, block % heads
            start = head * a.d
            factor = _inverse_rms(qkv, (0, row), start, a.d, a.eps, thread, threads, device)
            with g.each_vector(a.d, thread, threads, lanes) as at:
                value = v.load(qkv, 0, row, start + at, lanes=lanes)
                gammas = [v.load(b, at, lanes=lanes) for b in (gamma_q, gamma_k)]
                gamma = tirx.Select(head < a.h_q, *gammas)
                normal = value * v.splat(factor[0], lanes) * gamma
                kept = tirx.Select(head < a.h_q + a.h_kv, normal, value)
                g.store_as(kept, y, row, head, at, lanes=lanes)
    return builder.get()


def _inverse_rms(
    x: Buffer,
    row: tuple[Index, ...],
    start: Index,
    k: int,
    eps: float,
    thread: Expr,
    threads: int,
    device: Device,
) -> Buffer:
    """1 / sqrt(mean of squares + eps) of k values from `start`, by all threads of the block."""
    lanes = g.lanes_for(k)
    square, scratch = g.registers(1), g.shared(threads)
    v.put(v.const(0.0), square, 0)
    with g.each_vector(k, thread, threads, lanes) as at:
        part = T.bind(v.load(x, *row, start + at, lanes=lanes))
        for value in g.elements(part, lanes):
            v.put(square[0] + value * value, square, 0)
    total = g.block_total(square[0], thread, threads, scratch, device)
    factor = g.registers(1)
    v.put(v.const(1.0) / tirx.sqrt(total * v.const(1.0 / k) + v.const(eps)), factor, 0)
    return factor
