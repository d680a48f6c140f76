"""Join two results of attention over different keys into the first, in place."""

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.target import Device


def merge_state(heads: int, d: int, dtype: str, device: Device) -> tirx.PrimFunc:
    """o[m, heads, d], s f32[m, heads] and other_o, other_s -> o, s as over all keys at once.

    o is normalized and s = log2(sum of 2**score), so with w = 2**s, o <- (w o + w' o') / (w + w')
    and s <- log2(w + w'). A block a head: one thread alone reads and writes its s, and hands
    the shares to the others, which TVM's kernel does not, and so races.
    """
    m = v.size("m")
    lanes = g.lanes_for(d)
    threads = g.block_threads(d // lanes, device.threads)
    with v.kernel() as builder:
        o, s = v.argument("o", (m, heads, d), dtype), v.argument("s", (m, heads))
        other_o = v.argument("other_o", (m, heads, d), dtype)
        other_s = v.argument("other_s", (m, heads))
        with g.each_block(m * heads, device, threads=threads) as (block, thread):
            at = (block // heads, block % heads)
            shares = g.shared(2)
            with T.If(thread == 0), T.Then():
                mine, theirs = T.bind(s[at]), T.bind(other_s[at])
                top = T.bind(tirx.max(mine, theirs))
                weights = [T.bind(tirx.exp2(x - top)) for x in (mine, theirs)]
                mass = T.bind(weights[0] + weights[1])
                for side, weight in enumerate(weights):
                    v.put(weight / mass, shares, side)
                v.put(top + tirx.log2(mass), s, *at)
            g.barrier()
            with g.each_vector(d, thread, threads, lanes) as i:
                parts = [g.load_f32(x, *at, i, lanes=lanes) for x in (o, other_o)]
                sides = [parts[i] * v.splat(shares[i], lanes) for i in range(2)]
                g.store_as(sides[0] + sides[1], o, *at, i, lanes=lanes)
    return builder.get()
