"""RMSNorm, y = x · rsqrt(mean(x²) + eps) · gamma: over the last axis, or of q's and k's heads."""

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
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


def qk_norm(a: Attention, dtype: str, rows: int | None) -> tirx.PrimFunc:
    """qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d] -> dtype[m, h_q + 2 h_kv, d].

    q and k are normalized per head, v is copied; all are rounded to `dtype`.
    """
    m = v.size("m") if rows is None else rows
    heads = a.h_q + 2 * a.h_kv
    with v.kernel() as builder:
        qkv = v.argument("qkv", (1, m, heads * a.d))
        gammas = [v.argument(name, (a.d,)) for name in ("gamma_q", "gamma_k")]
        y = v.argument("y", (m, heads, a.d), dtype)
        with v.over(m, parallel=rows is None) as i:
            normal = v.workspace((1, a.d))
            for first, count, gamma in zip((0, a.h_q), (a.h_q, a.h_kv), gammas, strict=True):
                with T.serial(0, count) as h:
                    start = (first + h) * a.d
                    normalize((qkv, (0, i)), gamma, (normal, (0,)), a.d, a.eps, start)
                    _copy((normal, (0,)), 0, (y, (i, first + h)), a.d)
            with T.serial(0, a.h_kv) as h:
                head = a.h_q + a.h_kv + h
                _copy((qkv, (0, i)), head * a.d, (y, (i, head)), a.d)
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


def weigh(
    source: tuple[Buffer, tuple[Index, ...]],
    gamma: Buffer,
    sink: tuple[Buffer, tuple[Index, ...]],
    k: int,
    eps: float,
) -> Expr:
    """Write x · gamma of a row of k values to one of `sink`; give what is left of its norm.

    That is `inverse_rms`, which may multiply whatever is linear in the row.
    """
    (x, at), (y, to) = source, sink
    lanes = v.lanes_for(k)

    def keep(j: Index, part: Expr) -> None:
        v.store(part * v.load(gamma, j, lanes=lanes), y, *to, j, lanes=lanes)

    return inverse_rms(x, at, k, eps, use=keep)


def inverse_rms(
    x: Buffer,
    at: tuple[Index, ...],
    k: int,
    eps: float,
    start: Index = 0,
    use: Callable[[Index, Expr], None] | None = None,
) -> Expr:
    """1 / sqrt(mean of squares + eps) of k values of a row, in one register.

    `use(j, part)` is called with what is loaded: the values from start + j on.
    """
    lanes = v.lanes_for(k)
    square = v.local(1, lanes)
    v.store(v.splat(0.0, lanes), square, 0, 0, lanes=lanes)
    with T.serial(0, k // lanes) as j:
        part = v.load(x, *at, start + j * lanes, lanes=lanes)
        v.store(v.load(square, 0, 0, lanes=lanes) + part * part, square, 0, 0, lanes=lanes)
        if use is not None:
            use(j * lanes, part)
    factor = v.local(1, 1)
    mean = v.total(square, 0, lanes) * v.const(1.0 / k)
    v.put(v.const(1.0) / tirx.sqrt(mean + v.const(eps)), factor, 0, 0)
    return factor[0, 0]


def _copy(
    source: tuple[Buffer, tuple[Index, ...]],
    start: Index,
    sink: tuple[Buffer, tuple[Index, ...]],
    k: int,
) -> None:
    """Write k values from `start` of a row of `source` to the beginning of one of `sink`."""
    (x, at), (y, to) = source, sink
    lanes, dtype = v.lanes_for(k), str(y.dtype)
    kind = dtype if lanes == 1 else f"{dtype}x{lanes}"
    with T.serial(0, k // lanes) as j:
        value = v.load(x, *at, start + j * lanes, lanes=lanes)
        rounded = value if dtype == v.F32 else tirx.Cast(kind, value)
        v.store(rounded, y, *to, j * lanes, lanes=lanes)
