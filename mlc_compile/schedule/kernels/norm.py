"""RMSNorm over the last axis: y = x · rsqrt(mean(x²) + eps) · gamma."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index


def rms_norm(k: int, eps: float, rows: int | None) -> tirx.PrimFunc:
    """x[1, m, k], gamma[k] -> y[1, m, k]; m is `rows`, or symbolic and over threads if None."""
    m = v.size("m") if rows is None else rows
    with v.kernel() as builder:
        x = v.argument("x", (1, m, k))
        gamma = v.argument("gamma", (k,))
        y = v.argument("y", (1, m, k))
        with v.over(m, parallel=rows is None) as i:
            normalize((x, (0, i)), gamma, (y, (0, i)), k, eps)
    return builder.get()


def normalize(
    source: tuple[Buffer, tuple[Index, ...]],
    gamma: Buffer,
    sink: tuple[Buffer, tuple[Index, ...]],
    k: int,
    eps: float,
    start: Index = 0,
) -> None:
    """Write the norm of the k values from `start` of one row of `source` to the same of `sink`."""
    (x, at), (y, to) = source, sink
    lanes = v.lanes_for(k)
    factor = inverse_rms(x, at, k, eps, start)
    with T.serial(0, k // lanes) as j:
        scaled = v.load(x, *at, start + j * lanes, lanes=lanes) * v.splat(factor, lanes)
        v.store(scaled * v.load(gamma, j * lanes, lanes=lanes), y, *to, j * lanes, lanes=lanes)


def inverse_rms(x: Buffer, at: tuple[Index, ...], k: int, eps: float, start: Index = 0) -> Expr:
    """1 / sqrt(mean of squares + eps) of k values of a row, in one register."""
    lanes = v.lanes_for(k)
    square = v.local(1, lanes)
    v.store(v.splat(0.0, lanes), square, 0, 0, lanes=lanes)
    with T.serial(0, k // lanes) as j:
        part = v.load(x, *at, start + j * lanes, lanes=lanes)
        v.store(v.load(square, 0, 0, lanes=lanes) + part * part, square, 0, 0, lanes=lanes)
    factor = v.local(1, 1)
    mean = v.total(square, 0, lanes) * v.const(1.0 / k)
    v.put(v.const(1.0) / tirx.sqrt(mean + v.const(eps)), factor, 0, 0)
    return factor[0, 0]
