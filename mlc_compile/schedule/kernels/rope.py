"""Rotary position embedding: the angles of a call's tokens, and the rotation of one head.

The halves of a head rotate against each other, as in the checkpoint: for i < d / 2,
(x[i], x[i + d/2]) turns by position · inv_freq[i].
"""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import Buffer, Index


def angles(half: int, scale: float) -> tirx.PrimFunc:
    """length i32[1], inv_freq[d/2] -> [m, d]: cosines, then sines, times `scale`.

    Row i is the token at position length + i. The product is rounded to float32 before the
    cosine, as in transformers.
    """
    m = v.size("m")
    with v.kernel() as builder:
        length = v.argument("length", (1,), "int32")
        inv_freq = v.argument("inv_freq", (half,))
        y = v.argument("angles", (m, 2 * half))
        with T.parallel(0, m) as i, T.serial(0, half) as j:
            position = v.cast_f32(length[0] + tirx.Cast("int32", i))
            angle = position * inv_freq[j]
            v.put(tirx.cos(angle) * v.const(scale), y, i, j)
            v.put(tirx.sin(angle) * v.const(scale), y, i, half + j)
    return builder.get()


def rotate(head: Buffer, at: tuple[Index, ...], angles: Buffer, row: Index, d: int) -> None:
    """Turn the d values of one head in place by row `row` of `angles`."""
    half = d // 2
    lanes = v.lanes_for(half)
    with T.serial(0, half // lanes) as j:
        cos = v.load(angles, row, j * lanes, lanes=lanes)
        sin = v.load(angles, row, half + j * lanes, lanes=lanes)
        pair = v.local(2, lanes)
        first = v.load(head, *at, j * lanes, lanes=lanes)
        second = v.load(head, *at, half + j * lanes, lanes=lanes)
        v.store(first * cos - second * sin, pair, 0, 0, lanes=lanes)
        v.store(second * cos + first * sin, pair, 1, 0, lanes=lanes)
        for side in range(2):
            turned = v.load(pair, side, 0, lanes=lanes)
            v.store(turned, head, *at, side * half + j * lanes, lanes=lanes)
