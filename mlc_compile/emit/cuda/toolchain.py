"""Which CUDA compiler a build takes, and what this machine lacks to emit or to run: no TVM."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mlc_compile.emit.cuda.compiler import FIRST_RELEASE, PIP_HINT, CudaCompiler
from mlc_compile.emit.cuda.nvcc import find_nvcc
from mlc_compile.emit.cuda.nvrtc import find_nvrtc
from mlc_compile.errors import MlcError, TargetError

FINDERS: Final[tuple[Callable[[], CudaCompiler | None], ...]] = (find_nvcc, find_nvrtc)

# What TVM's CUDA runtime loads, in order -> the command that brings it.
LIBRARIES: Final = {
    "libcuda.so.1": "install the NVIDIA driver: apt-get install nvidia-driver-580 or later",
    "libcudart.so.13": "pip install 'mlc_compile[cuda]', its nvidia/cu13/lib on LD_LIBRARY_PATH",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What a machine can do with CUDA; what is missing stands with the command that brings it."""

    compiler: str | None  # name and version
    emit_missing: str = ""
    emit_fix: str = ""
    devices: int = 0
    run_missing: str = ""
    run_fix: str = ""


def find_compiler(archs: Sequence[str]) -> CudaCompiler:
    """The first compiler that can do all of `archs`.

    TargetError if there is none, EnvironmentError_ if the first has no place to write.
    """
    refusals = []
    for compiler in _installed():
        refusal = compiler.missing(archs)
        if refusal is None:
            return compiler
        refusals.append(refusal)
    if refusals:
        raise refusals[0]
    raise TargetError("no CUDA compiler: nvcc or NVRTC is needed", hint=PIP_HINT)


def probe(archs: Sequence[str] = tuple(FIRST_RELEASE)) -> Probe:
    """Look at compiler, libraries and device; raises nothing."""
    devices, run_missing, run_fix = _devices()
    try:
        name = find_compiler(archs).name
    except MlcError as e:
        return Probe(None, str(e), e.hint, devices, run_missing, run_fix)
    return Probe(name, devices=devices, run_missing=run_missing, run_fix=run_fix)


def _installed() -> Iterator[CudaCompiler]:
    for find in FINDERS:
        compiler = find()
        if compiler is not None:
            yield compiler


def _devices() -> tuple[int, str, str]:
    """How many GPUs can be used; if none, what is missing and what brings it."""
    loaded = {}
    for name, fix in LIBRARIES.items():
        try:
            loaded[name] = ctypes.CDLL(name)
        except OSError:
            return 0, f"{name} does not load", fix
    driver = loaded["libcuda.so.1"]
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return 0, f"the driver finds no GPU (status {status})", "nvidia-smi says more"
    if count.value == 0:
        return 0, "there is no GPU", ""
    return count.value, "", ""
