"""Embedding lookup on a GPU, straight from the stored weights."""

from typing import Final

from tvm import tirx

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.weights import Codec
from mlc_compile.target import Device

THREADS: Final = 256


def take(codec: Codec, device: Device) -> tirx.PrimFunc:
    """ids i32[m], parts of w[vocab, k] -> y[m, k], float32, m symbolic. Ids must be in range.

    A thread decodes a piece of a row.
    """
    m = v.size("m")
    pieces = codec.k // codec.piece
    lanes = g.lanes_for(codec.piece)
    with v.kernel() as builder:
        ids = v.argument("ids", (m,), "int32")
        parts = codec.arguments()
        y = v.argument("y", (m, codec.k))
        with g.each_item(m * pieces, device, threads=min(THREADS, device.threads)) as item:
            i, piece = item // pieces, item % pieces
            values = codec.decode(codec.fetch_piece(parts, ids[i], piece))
            held = g.registers(codec.piece)
            for j, value in enumerate(values):
                v.put(value, held, j)
            for j in range(0, codec.piece, lanes):
                vector = v.load(held, j, lanes=lanes)
                g.store_as(vector, y, i, piece * codec.piece + j, lanes=lanes)
    return builder.get()
