"""RMSNorm on a GPU: one block a row, y = x · rsqrt(mean(x²) + eps) · gamma."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.target import Device


def rms_norm(k: int, eps: float, rows: int | None, device: Device) -> tirx.PrimFunc:
    """x[1, m, k], gamma[k] -> y[1, m, k], float32; m is `rows`, or symbolic if None."""
    m = v.size("m") if rows is None else rows
    threads = g.block_threads(k // g.VECTOR, min(256, device.threads))
    with v.kernel() as builder:
        x = v.argument("x", (1, m, k))
        gamma = v.argument("gamma", (k,))
        y = v.argument("y", (1, m, k))
        with g.launch(m, threads=threads) as (row, thread):
            square, scratch = g.registers(1), g.shared(threads)
            v.put(v.const(0.0), square, 0)
            with T.serial(0, g.blocks_of(k, threads)) as j:
                at = j * threads + thread
                with T.If(at < k), T.Then():
                    v.put(square[0] + x[0, row, at] * x[0, row, at], square, 0)
            total = g.block_sum(square[0], thread, threads, scratch)
            factor = g.registers(1)
            mean = total * v.const(1.0 / k)
            v.put(v.const(1.0) / tirx.sqrt(mean + v.const(eps)), factor, 0)
            with T.serial(0, g.blocks_of(k, threads)) as j:
                at = j * threads + thread
                with T.If(at < k), T.Then():
                    v.put(x[0, row, at] * factor[0] * gamma[at], y, 0, row, at)
    return builder.get()
