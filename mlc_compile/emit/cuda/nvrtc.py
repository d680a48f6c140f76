"""NVRTC and nvFatbin, the libraries of NVIDIA's pip packages, called through their C interface.

They are looked for in the folder that those packages share, not on the system: what `pip
install 'mlc_compile[cuda]'` brings has one version, headers included. nvcc goes first where
both are: it addresses shared memory in 32 bits and NVRTC in 64, which takes a few registers.
"""

import ctypes
import importlib.util
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from mlc_compile.emit.cuda.compiler import PIP_HINT, SOURCE, Fatbin, first_error, unknown_arch
from mlc_compile.emit.cuda.resources import arch_number, read_resources
from mlc_compile.errors import TargetError, listing
from mlc_compile.tvm_version import installed

MAJOR: Final = 13
DISTRIBUTION: Final = "nvidia-cuda-nvrtc"
FOLDER: Final = f"cu{MAJOR}"  # inside the namespace package `nvidia`
NVRTC: Final = f"lib/libnvrtc.so.{MAJOR}"
NVFATBIN: Final = f"lib/libnvfatbin.so.{MAJOR}"
# File -> the distribution that brings it.
PARTS: Final = {
    NVFATBIN: "nvidia-nvfatbin",
    "include/cuda_fp16.h": "nvidia-cuda-runtime",
    "include/cccl/cuda/std/cstdint": "nvidia-cuda-cccl",
    "include/crt/mma.h": "nvidia-cuda-crt",  # tensor cores
}
COMPILATION_ERROR: Final = 6  # NVRTC_ERROR_COMPILATION: the log says more


def find_nvrtc() -> "Nvrtc | None":
    """NVRTC as pip installed it."""
    version = installed(DISTRIBUTION)
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    home = next((h for p in places if (h := Path(p) / FOLDER) and (h / NVRTC).is_file()), None)
    if home is None or version is None:
        return None
    major, minor = (int(part) for part in version.split(".")[:2])
    return Nvrtc(f"nvrtc {version}", home, (major, minor))


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The libraries and headers under `home`."""

    name: str
    home: Path
    release: tuple[int, int]

    def missing(self, archs: Sequence[str]) -> TargetError | None:
        """Packages that belong to it, whether it loads, architectures."""
        absent = [name for file, name in PARTS.items() if not (self.home / file).is_file()]
        if absent:
            return TargetError(f"{self.name} needs {listing(absent)}", hint=PIP_HINT)
        try:
            known = self._known()
        except OSError as e:
            return TargetError(f"{self.name} does not load: {e}", hint=f"reinstall it: {PIP_HINT}")
        return unknown_arch(self.name, self.release, known, archs)

    def compile(self, source: str, archs: Sequence[str]) -> Fatbin:
        """A program for each architecture, all at once, then put together."""
        newest = max(archs, key=arch_number)
        wanted = [*archs, newest.replace("sm_", "compute_")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(lambda arch: self._compile_one(source, arch), wanted))
        *cubins, (ptx, _) = made
        code = self._join(dict(zip(archs, (code for code, _ in cubins), strict=True)), newest, ptx)
        return Fatbin(code, read_resources(source, "".join(said for _, said in cubins)))

    def programs(self) -> Mapping[str, Path]:
        """None: all of it comes in wheels."""
        return {}

    def _known(self) -> tuple[str, ...]:
        library = _load(self.home)
        count = ctypes.c_int()
        _check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
        numbers = (ctypes.c_int * count.value)()
        _check(library.nvrtcGetSupportedArchs(numbers), "nvrtcGetSupportedArchs")
        return tuple(f"sm_{n}" for n in numbers)

    def _compile_one(self, source: str, arch: str) -> tuple[bytes, str]:
        """Machine code for an `sm_`, PTX for a `compute_`; and what the compiler said."""
        library = _load(self.home)
        program = ctypes.c_void_p()
        create = library.nvrtcCreateProgram
        text, name = source.encode(), SOURCE.encode()
        _check(create(ctypes.byref(program), text, name, 0, None, None), "nvrtcCreateProgram")
        try:
            options = [option.encode() for option in self._options(arch)]
            array = (ctypes.c_char_p * len(options))(*options)
            status = library.nvrtcCompileProgram(program, len(options), array)
            said = _read(library, "nvrtcGetProgramLog", program).rstrip(b"\0").decode()
            if status == COMPILATION_ERROR:
                raise _failure(f"{self.name} could not compile the kernels", said)
            _check(status, "nvrtcCompileProgram")
            kind = "CUBIN" if arch.startswith("sm_") else "PTX"
            return _read(library, f"nvrtcGet{kind}", program), said
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _options(self, arch: str) -> tuple[str, ...]:
        include = self.home / "include"
        return (
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "--ptxas-options=-v",
            f"--include-path={include}",
            f"--include-path={include / 'cccl'}",
        )

    def _join(self, cubins: dict[str, bytes], newest: str, ptx: bytes) -> bytes:
        library = ctypes.CDLL(str(self.home / NVFATBIN))
        handle = ctypes.c_void_p()
        _check(library.nvFatbinCreate(ctypes.byref(handle), None, _size(0)), "nvFatbinCreate")
        try:
            for arch, code in cubins.items():
                number = arch.removeprefix("sm_").encode()
                status = library.nvFatbinAddCubin(handle, code, _size(len(code)), number, b"")
                _check(status, "nvFatbinAddCubin")
            number = newest.removeprefix("sm_").encode()
            status = library.nvFatbinAddPTX(handle, ptx, _size(len(ptx)), number, b"", b"")
            _check(status, "nvFatbinAddPTX")
            size = _size()
            _check(library.nvFatbinSize(handle, ctypes.byref(size)), "nvFatbinSize")
            data = ctypes.create_string_buffer(size.value)
            _check(library.nvFatbinGet(handle, data), "nvFatbinGet")
            return data.raw
        finally:
            library.nvFatbinDestroy(ctypes.byref(handle))


_size: Final = ctypes.c_size_t


@cache
def _load(home: Path) -> ctypes.CDLL:
    """NVRTC; its builtins first, since it looks for them by name alone."""
    for builtins in sorted((home / NVRTC).parent.glob(f"libnvrtc-builtins.so.{MAJOR}.*")):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(home / NVRTC))


def _read(library: ctypes.CDLL, getter: str, program: ctypes.c_void_p) -> bytes:
    """What `getter` gives; its partner `getter + "Size"` says how much."""
    size = _size()
    _check(getattr(library, f"{getter}Size")(program, ctypes.byref(size)), f"{getter}Size")
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(library, getter)(program, data), getter)
    return data.raw


def _check(status: int, function: str) -> None:
    if status != 0:
        raise _failure(f"{function} failed", f"status {status}")


def _failure(what: str, said: str) -> TargetError:
    return TargetError(
        f"{what}: {first_error(said, 'it does not say why')}", hint=f"reinstall it: {PIP_HINT}"
    )
