"""`valid` and `run`: Khronos' validator and a Vulkan device, where they are installed."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlc_compile.emit.spirv import Shader, emit_kernel
from mlc_compile.errors import TargetError
from mlc_compile.target import Device, find_target


@pytest.fixture(scope="session")
def device() -> Device:
    """A device that has everything, and subgroups."""
    row = find_target("vulkan").device
    return msgspec.structs.replace(row, f16=True, int8=True, subgroup=32, buffers=None)


@pytest.fixture(scope="session")
def errors_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shader], str]:
    """`errors_of(shader)`: what Khronos' validator has against it; "" is valid."""
    program = shutil.which("spirv-val")
    if program is None:
        pytest.skip("needs spirv-val: apt-get install spirv-tools")
    path: Path = tmp_path_factory.mktemp("spirv") / "shader.spv"

    def check(shader: Shader) -> str:
        path.write_bytes(shader.code)
        asked = [program, "--target-env", "vulkan1.1", str(path)]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        return "" if said.returncode == 0 else said.stdout + said.stderr or "invalid"

    return check


@pytest.fixture(scope="session")
def emit(device: Device, errors_of: Callable[[Shader], str]) -> Callable[..., Shader]:
    """`emit(func)`: the shader of a kernel, which is valid."""

    def make(func: object) -> Shader:
        shader = emit_kernel(func, device)
        assert errors_of(shader) == ""
        return shader

    return make


@pytest.fixture(scope="session")
def run(emit: Callable[..., Shader]) -> Callable[..., None]:
    """`run(func, arrays, numbers, grid)`: launch a kernel; writes into the arrays."""
    try:
        from mlc_compile.runtime.vulkan.dispatcher import Dispatcher
        from mlc_compile.runtime.vulkan.machine import the_machine

        dispatcher = Dispatcher(the_machine())
    except TargetError as e:
        pytest.skip(f"needs Vulkan: apt-get install mesa-vulkan-drivers ({e}; {e.hint})")

    def launch(
        func: object,
        arrays: list[np.ndarray],
        numbers: tuple[np.generic, ...] = (),
        grid: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        shader = emit(func)
        dispatcher.run(shader.code, shader.name, arrays, numbers, grid, shader.uniform_block)

    return launch
