"""Embedding lookup straight from the packed weights: the tied head's copy serves both."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.weights import Codec


def take(codec: Codec) -> tirx.PrimFunc:
    """ids i32[m], parts of w[vocab, k] -> y[m, k], m symbolic. Ids must be in range."""
    m = v.size("m")
    with v.kernel() as builder:
        ids = v.argument("ids", (m,), "int32")
        parts = codec.arguments()
        y = v.argument("y", (m, codec.k))
        with T.parallel(0, m) as i, T.serial(0, codec.k // codec.group) as g:
            for kk in range(codec.group):
                v.put(codec.row(parts, ids[i], g, kk), y, i, g * codec.group + kk)
    return builder.get()
