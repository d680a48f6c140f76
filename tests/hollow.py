"""Kernels without code, for claims about what is said of a library."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_compile.emit.keeper import KernelSource
from mlc_compile.emit.link.linker import C_COMPILERS


class Hollow:
    """A keeper of kernels that has an empty object for each, of this machine."""

    def __init__(self, directory: Path) -> None:
        compiler = next(filter(shutil.which, C_COMPILERS), None)
        if compiler is None:
            pytest.skip("needs a C compiler: apt-get install gcc")
        file = directory / "empty.o"
        subprocess.run([compiler, "-x", "c", "-c", os.devnull, "-o", file], check=True)
        self.empty = file.read_bytes()

    def take(self, _kernel: KernelSource, _make: Callable[[], bytes]) -> bytes:
        return self.empty
