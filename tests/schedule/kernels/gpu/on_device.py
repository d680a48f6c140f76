"""Kernels on this machine's Vulkan device, in libraries as they are shipped.

Behind each argument lies a guard in the same buffer, where a shader that oversteps would write:
what a driver does with accesses beyond a buffer, nobody promises. It is NaN to who reads it.
"""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import IRModule, tirx

from mlc_compile.emit.link.linker import find_linker
from mlc_compile.emit.vulkan.emitter import emit
from mlc_compile.schedule.limits import launches_of
from mlc_compile.target import find_target
from tests.schedule.kernels.gpu.place import Place

ROW = "vulkan"
GUARD = 1 << 16  # bytes behind an argument: a tile of 128 rows of 128 floats
MARK = 0xFF


def run(func: tirx.PrimFunc, _row: str, *args: np.ndarray | float) -> Sequence[object]:
    """Write into the arguments what the kernel does; every guard must be as it was.

    Gives what each launch asks for, as far as the kernel says it.
    """
    guarded = [_guarded(arg) if isinstance(arg, np.ndarray) else None for arg in args]
    given = [a if g is None else _shown(g, a) for a, g in zip(args, guarded, strict=True)]
    library(func)(*given)
    for arg, buffer in zip(args, guarded, strict=True):
        if buffer is not None:
            found = buffer.numpy()
            assert (found[arg.nbytes :] == MARK).all(), "a kernel wrote behind an argument"
            arg.reshape(-1).view(np.uint8)[:] = found[: arg.nbytes]
    return launches_of(func)


@functools.cache
def library(func: tirx.PrimFunc) -> Callable[..., None]:
    """A library of one kernel, its indices narrowed as the pipeline does, built and loaded."""
    row = find_target(ROW)
    mod = IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    mod = tirx.transform.ForceNarrowIndexToInt32()(mod)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.so"
        emit(mod, row, find_linker(row), path)
        loaded = tvm.runtime.load_module(str(path))
    return loaded.get_function("kernel", query_imports=True)


def _guarded(array: np.ndarray) -> tvm.runtime.Tensor:
    data = np.full(array.nbytes + GUARD, MARK, np.uint8)
    data[: array.nbytes] = array.reshape(-1).view(np.uint8)
    return tvm.runtime.tensor(data, tvm.device(ROW, 0))


def _shown(buffer: tvm.runtime.Tensor, array: np.ndarray) -> tvm.runtime.Tensor:
    return buffer._create_view(array.shape, str(array.dtype))


# Of exp, Vulkan asks for 3 + 2 |x| ulp ("Precision and Operation of SPIR-V Instructions").
DEVICE = Place(run, lambda x: 3 + 2 * np.abs(x))
