"""Run a kernel that gives each thread a share, and say how the shares lay, as JSON.

`python thread_shares.py`, with TVM_NUM_THREADS set: it must be known before TVM starts. Then
the pool is said to have other numbers of threads, up to more than there are shares for.
"""

import json
import sys

import numpy as np
import tvm
import tvm_ffi
from tvm.tirx.script import builder as T

from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.target import find_target

THREADS = "runtime.NumThreads"
COUNTS = (1, 2, 3, 7, 8, 100)
TOLD = (1, 2, 3, 4, 5, 8, 64)


def shared_out(count: int) -> object:
    """times[i] += 1 and first[i] = where the share begins, for every i of a thread's share."""
    with v.kernel() as builder:
        times = v.argument("times", (count,), "int32")
        first = v.argument("first", (count,), "int32")
        with v.share_of(count) as (start, end), T.serial(start, end) as i:
            v.put(times[i] + 1, times, i)
            v.put(tvm.tirx.Cast("int32", start), first, i)
    return builder.get()


def lengths(run: object, count: int) -> list[int]:
    """Of the shares, in order; nothing where an index was not visited just once."""
    times, first = (tvm.runtime.tensor(np.zeros(count, np.int32)) for _ in range(2))
    run(times, first)
    starts, sizes = np.unique(first.numpy(), return_counts=True)
    in_a_row = np.array_equal(np.repeat(starts, sizes), first.numpy())
    once = (times.numpy() == 1).all()
    return [int(size) for size in sizes] if once and in_a_row else []


if __name__ == "__main__":
    here = tvm.get_global_func(THREADS)()
    told = {"threads": here}
    tvm_ffi.register_global_func(THREADS, lambda: told["threads"], override=True)
    found = []
    for count in COUNTS:
        module = tvm.IRModule({"main": shared_out(count).with_attr("global_symbol", "main")})
        with code_generation():
            run = tvm.compile(module, target=tvm_target(find_target("cpu")))["main"]
        for threads in (here, *TOLD):
            told["threads"] = threads
            found.append({"threads": threads, "count": count, "shares": lengths(run, count)})
    sys.stdout.write(json.dumps({"pool": here, "found": found}))
