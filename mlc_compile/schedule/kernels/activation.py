"""SwiGLU: y = silu(gate) · up, gate and up being the halves of one tensor."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.elementary import silu


def swiglu(i: int, rows: int | None) -> tirx.PrimFunc:
    """gate_up[1, m, 2 i] -> y[1, m, i]; m is `rows`, or symbolic and over threads if None."""
    m = v.size("m") if rows is None else rows
    lanes = v.lanes_for(i)
    with v.kernel() as builder:
        x = v.argument("gate_up", (1, m, 2 * i))
        y = v.argument("y", (1, m, i))
        with v.over(m, parallel=rows is None) as row, T.serial(0, i // lanes) as j:
            gate = v.load(x, 0, row, j * lanes, lanes=lanes)
            up = v.load(x, 0, row, i + j * lanes, lanes=lanes)
            v.store(silu(gate, lanes) * up, y, 0, row, j * lanes, lanes=lanes)
    return builder.get()
