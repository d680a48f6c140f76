"""A payload of kind "vulkan": what TVM's Vulkan module is saved as, and loaded from.

In the words of `device_blob`, with which its layout belongs:

    vulkan    str "vulkan", kernels, vec of: str key, str code
    code      u32 flag, vec<u32> of SPIR-V words; bit 0 of the flag: scalars are in a uniform
              block, not in push constants

Nothing writes one in a TVM without Vulkan, so there is no writer to compare with: the tests hold
the table of kernels against CUDA's, which has the same layout, and the rest against a file.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mlc_compile.emit.device_blob import KernelEntry, string, u64, vector, write_kernels
from mlc_compile.emit.spirv import Shader

KIND: Final = "vulkan"  # of TVM's target, its module and the payload
LAYOUT: Final = "TVM 0.25 to 0.27"  # whose Vulkan modules are saved like this
WORD: Final = 4  # bytes
UNIFORM_BLOCK: Final = 1


def write_vulkan(kernels: Sequence[KernelEntry], shaders: Sequence[Shader]) -> bytes:
    """The bytes of a payload: both in the same order, one shader a kernel."""
    assert [k.key for k in kernels] == [s.name for s in shaders], "a shader for each kernel"
    return string(KIND) + write_kernels(kernels) + vector(shaders, _write_shader)


def _write_shader(shader: Shader) -> bytes:
    assert len(shader.code) % WORD == 0, f"{shader.name} is no whole number of words"
    flag = struct.pack("<I", UNIFORM_BLOCK if shader.uniform_block else 0)
    return string(shader.name) + string(flag + u64(len(shader.code) // WORD) + shader.code)
