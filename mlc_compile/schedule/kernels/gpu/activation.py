"""SwiGLU on a GPU: y = silu(gate) · up, gate and up being the halves of one tensor."""

from tvm import tirx

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Expr
from mlc_compile.target import Device

THREADS = 256
FAR = 87.0  # exp of more is infinite in float32, which not every shading language has


def swiglu(i: int, rows: int | None, device: Device) -> tirx.PrimFunc:
    """gate_up[1, m, 2 i] -> y[1, m, i]; m is `rows`, or symbolic if None. A thread a vector."""
    m = v.size("m") if rows is None else rows
    lanes = g.lanes_for(i)
    with v.kernel() as builder:
        x = v.argument("gate_up", (1, m, 2 * i))
        y = v.argument("y", (1, m, i))
        vectors = i // lanes
        with g.each_item(m * vectors, device, threads=min(THREADS, device.threads)) as item:
            row, at = item // vectors, item % vectors * lanes
            gate = v.load(x, 0, row, at, lanes=lanes)
            up = v.load(x, 0, row, i + at, lanes=lanes)
            g.store_as(_silu(gate, lanes) * up, y, 0, row, at, lanes=lanes)
    return builder.get()


def _silu(x: Expr, lanes: int) -> Expr:
    """x / (1 + exp(-x)): x times its sigmoid."""
    negated = tirx.min(v.splat(0.0, lanes) - x, v.splat(FAR, lanes))
    return x / (v.splat(1.0, lanes) + tirx.exp(negated))
