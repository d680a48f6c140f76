"""SwiGLU on a GPU: y = silu(gate) · up, gate and up being the halves of one tensor."""

from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.target import Device

THREADS: Final = 256


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
            gate = T.bind(v.load(x, 0, row, at, lanes=lanes))
            up = v.load(x, 0, row, i + at, lanes=lanes)
            g.store_as(g.silu(gate, lanes) * up, y, 0, row, at, lanes=lanes)
    return builder.get()
