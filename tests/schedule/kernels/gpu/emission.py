"""What every GPU kernel must be: within its device's limits, and text that compilers take."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest
import tvm
from tvm import IRModule, tirx

from mlc_compile.emit import metal, webgpu
from mlc_compile.emit.backend import emitter_of
from mlc_compile.emit.cuda import emitter as cuda
from mlc_compile.emit.cuda.nvcc import find_nvcc
from mlc_compile.target import Device, Target, find_target
from tests.schedule.kernels.gpu.place import INTERPRETED, elsewhere
from tests.simt import Launch
from tests.simt.lowering import lower
from tests.simt.run import execute

ROWS = ("cuda-sm80", "metal", "vulkan", "webgpu")  # one of each kind of device

# By backend, those whose code generator TVM's wheel has.
SOURCES: Mapping[str, Callable[[IRModule, Target], str]] = {
    "cuda": cuda.source,
    "metal": lambda mod, row: "".join(metal.kernel_sources(metal.build(mod, row).mod).values()),
    "webgpu": lambda mod, row: "".join(webgpu.shaders(webgpu.build(mod, row).mod).values()),
}
PRINTED = tuple(row for row in ROWS if find_target(row).backend in SOURCES)


def device_of(row: str) -> Device:
    """The device of a target row."""
    device = find_target(row).device
    assert device is not None
    return device


def types_of(row: str) -> tuple[str, ...]:
    """Of floating-point values that the row's device has."""
    return ("float32", "float16") if device_of(row).f16 else ("float32",)


every_row = pytest.mark.parametrize("row", ROWS)
every_type = pytest.mark.parametrize(
    ("row", "dtype"), [(row, dtype) for row in ROWS for dtype in types_of(row)]
)


def tvm_target(row: Target) -> tvm.target.Target:
    """As the row's emitter describes it."""
    return emitter_of(row).tvm_target(row)


def simulate(func: tirx.PrimFunc, row: str, *args: np.ndarray | float) -> Sequence[Launch]:
    """Run on the row's device, interpreted; the launches are within its limits.

    A kernel that is run again is not lowered again. A test may be somewhere else: see `place`.
    """
    place = elsewhere()
    if place is not INTERPRETED:
        return place.run(func, row, *args)
    launches = execute(lowered(func, row), *args)
    check_limits(launches, device_of(row))
    return launches


@functools.cache
def lowered(func: tirx.PrimFunc, row: str) -> tirx.PrimFunc:
    """What the interpreter executes."""
    return lower(func, tvm_target(find_target(row)))


def check_limits(launches: Iterable[Launch], device: Device) -> None:
    """Threads, shared memory, buffers and grid of each launch."""
    for launch in launches:
        assert np.prod(launch.block) <= device.threads
        assert launch.shared_bytes <= device.shared_bytes
        assert device.buffers is None or launch.global_buffers <= device.buffers
        assert launch.grid[0] <= device.grid
        assert launch.grid[2] == 1, "TVM's WebGPU runtime folds long grids into z"


def source(row: str, *funcs: tirx.PrimFunc) -> str:
    """What the row's emitter prints, indices narrowed as the pipeline does."""
    named = {f"kernel_{i}": f for i, f in enumerate(funcs)}
    mod = IRModule({name: f.with_attr("global_symbol", name) for name, f in named.items()})
    mod = tirx.transform.ForceNarrowIndexToInt32()(mod)
    target = find_target(row)
    return SOURCES[target.backend](mod, target)


def check_no_spills(*funcs: tirx.PrimFunc) -> None:
    """nvcc compiles every kernel without a register that goes through memory."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc: see `mlc-compile doctor`")
    kernels = nvcc.compile(source("cuda-sm80", *funcs), ["sm_80"]).resources
    assert len(kernels) >= len(funcs)
    for kernel in kernels:
        assert not kernel.spills, kernel
