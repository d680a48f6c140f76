"""Run kernels that launch every thread once, and say what came out, as JSON.

`python every_thread.py`, with TVM_NUM_THREADS set: it must be known before TVM starts.
"""

import json
import sys

import numpy as np
import tvm
from tvm.tirx.script import builder as T

from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.target import find_target

SIZE = 8


def shared_out(tasks: int) -> object:
    """y[i] += sum(2 x) + i: each thread doubles x for itself, and the tasks are divided."""
    with v.kernel() as builder:
        x = v.argument("x", (SIZE,))
        y = v.argument("y", (tasks,))
        with v.every_thread(tasks):
            doubled = v.workspace((SIZE,))
            with T.serial(0, SIZE) as j:
                v.put(x[j] * v.const(2.0), doubled, j)
            with T.parallel(0, tasks) as i, T.serial(0, SIZE + 1) as j:
                part = tvm.tirx.if_then_else(j < SIZE, doubled[j % SIZE], v.cast_f32(i))
                v.put(y[i] + part, y, i)
    return builder.get()


def wrong(tasks: int) -> int:
    """How many elements of y are not what each task computes when it runs exactly once."""
    func = shared_out(tasks).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": func})
    with code_generation():
        run = tvm.compile(module, target=tvm_target(find_target("cpu")))["main"]
    x, y = (tvm.runtime.tensor(np.ones(n, np.float32)) for n in (SIZE, tasks))
    for _ in range(3):  # a launch leaves the pool as it found it
        run(x, y)
    return int((y.numpy() != 1 + 3 * (2 * SIZE + np.arange(tasks))).sum())


if __name__ == "__main__":
    counted = {tasks: wrong(tasks) for tasks in (1, 2, 3, 7, 1000)}
    told = {"threads": tvm.get_global_func("runtime.NumThreads")(), "wrong": counted}
    sys.stdout.write(json.dumps(told))
