"""Run Arm kernels here, under qemu.

The cross-compiled object and driver.c make one static program, which needs nothing of TVM.
"""

import importlib.util
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.target import Target

QEMU = "qemu-aarch64-static"
CODES = {"i": 0, "u": 1, "f": 2}  # numpy's kinds in DLPack
Arrays = list[np.ndarray]


def compiled(func: object, row: Target) -> tvm.runtime.Module:
    """The kernel's code for a target."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with code_generation():
        return tvm.compile(module, target=tvm_target(row)).mod


def assembly(func: object, row: Target) -> str:
    """The kernel's code for a target, as text."""
    return compiled(func, row).inspect_source("asm")


class Emulator:
    """`emulator(func, row, cpu="max")(*arrays)`: the arrays as the kernel leaves them there.

    `cpu` is one that qemu knows.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which(QEMU) is None:
            pytest.skip("needs qemu: apt-get install qemu-user-static")
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("needs zig: pip install 'mlc_compile[cross]'")
        self.directory = directory

    def __call__(self, func: object, row: Target, cpu: str = "max") -> Callable[..., Arrays]:
        program = self._linked(func, row)

        def call(*arguments: np.ndarray | int) -> Arrays:
            ran = subprocess.run(
                [QEMU, "-cpu", cpu, program],
                input=b"".join(map(_written, arguments)),
                capture_output=True,
                check=False,
            )
            if ran.returncode:
                raise subprocess.CalledProcessError(ran.returncode, QEMU, stderr=ran.stderr)
            return _read(ran.stdout, [a for a in arguments if isinstance(a, np.ndarray)])

        return call

    def _linked(self, func: object, row: Target) -> Path:
        stem = self.directory / f"kernel{len(list(self.directory.iterdir()))}"
        kernel, program = stem.with_suffix(".o"), stem.with_suffix("")
        compiled(func, row).write_to_file(str(kernel))
        includes = [f"-I{path}" for path in (find_include_path(), find_dlpack_include_path())]
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"]
        driver = Path(__file__).with_name("driver.c")
        subprocess.run([*zig, "-O1", *includes, driver, kernel, "-o", program], check=True)
        return program


def _written(argument: np.ndarray | int) -> bytes:
    if isinstance(argument, int):
        return struct.pack("<iq", 0, argument)
    code, bits = CODES[argument.dtype.kind], 8 * argument.itemsize
    head = struct.pack("<4i", 1, code, bits, argument.ndim)
    return head + struct.pack(f"<{argument.ndim}q", *argument.shape) + argument.tobytes()


def _read(data: bytes, arrays: Arrays) -> Arrays:
    ends = np.cumsum([a.nbytes for a in arrays])
    assert len(data) == ends[-1]
    return [
        np.frombuffer(data[end - a.nbytes : end], a.dtype).reshape(a.shape)
        for a, end in zip(arrays, ends, strict=True)
    ]
