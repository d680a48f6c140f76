"""A Vulkan device, and shaders for it, assembled from their text."""

import dataclasses
import shutil
import struct
import subprocess
from collections.abc import Callable

import pytest

from mlc_compile.errors import TargetError
from mlc_compile.runtime.device import missing_device
from mlc_compile.runtime.vm import start_tvm
from mlc_compile.runtime.vulkan.buffers import CACHED
from mlc_compile.runtime.vulkan.loader import Gpu, open_gpu
from mlc_compile.runtime.vulkan.machine import Machine, the_machine
from mlc_compile.runtime.vulkan.payload import Kernel

Assemble = Callable[[int, bool], bytes]


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The device of this machine: lavapipe, where there is no GPU."""
    try:
        return open_gpu()
    except TargetError as e:
        pytest.skip(f"needs Vulkan: apt-get install mesa-vulkan-drivers ({e}; {e.hint})")


@pytest.fixture(scope="session", params=["unified", "uncached", "discrete"])
def machine(request: pytest.FixtureRequest, gpu: Gpu) -> Machine:
    """The device, its memory seen by the host, slowly seen, and as if it were not."""
    kind = "discrete" if request.param == "discrete" else "integrated"
    slow = ~CACHED if request.param == "uncached" else ~0
    types = tuple(flags & slow for flags in gpu.memory_types)
    return Machine(dataclasses.replace(gpu, kind=kind, memory_types=types))


@pytest.fixture(scope="session")
def installed_machine(gpu: Gpu) -> Machine:
    """The device as TVM's runtime has it."""
    start_tvm()
    assert missing_device("vulkan") is None
    return the_machine()


@pytest.fixture(scope="session")
def assemble(tmp_path_factory: pytest.TempPathFactory) -> Assemble:
    """`assemble(n, uniform)`: a shader y[i] = x[i] + the last of n numbers, all i32."""
    program = shutil.which("spirv-as")
    if program is None:
        pytest.skip("needs spirv-as: apt-get install spirv-tools")
    directory = tmp_path_factory.mktemp("shaders")

    def run(numbers: int, uniform: bool) -> bytes:
        path = directory / "add.spv"
        asked = [program, "--target-env", "spv1.3", "-o", path, "-"]
        subprocess.run(asked, input=adding(numbers, uniform), text=True, check=True)
        return path.read_bytes()

    return run


def adding(numbers: int, uniform: bool) -> str:
    """The text of `assemble`'s shader, in TVM's calling convention."""
    storage = "Uniform" if uniform else "PushConstant"
    offsets = "\n".join(f"OpMemberDecorate %Numbers {i} Offset {8 * i}" for i in range(numbers))
    place = "OpDecorate %numbers DescriptorSet 0\nOpDecorate %numbers Binding 2"
    return f"""
        OpCapability Shader
        OpMemoryModel Logical GLSL450
        OpEntryPoint GLCompute %main "add" %id
        OpExecutionMode %main LocalSize 1 1 1
        OpDecorate %id BuiltIn GlobalInvocationId
        OpDecorate %ints ArrayStride 4
        OpMemberDecorate %Buffer 0 Offset 0
        OpDecorate %Buffer Block
        OpDecorate %x DescriptorSet 0
        OpDecorate %x Binding 0
        OpDecorate %y DescriptorSet 0
        OpDecorate %y Binding 1
        OpDecorate %Numbers Block
        {offsets}
        {place if uniform else ""}
        %void = OpTypeVoid
        %function = OpTypeFunction %void
        %int = OpTypeInt 32 1
        %uint = OpTypeInt 32 0
        %uint3 = OpTypeVector %uint 3
        %ints = OpTypeRuntimeArray %int
        %Buffer = OpTypeStruct %ints
        %Numbers = OpTypeStruct {"%int " * numbers}
        %inputs = OpTypePointer Input %uint3
        %buffers = OpTypePointer StorageBuffer %Buffer
        %numberses = OpTypePointer {storage} %Numbers
        %elements = OpTypePointer StorageBuffer %int
        %number = OpTypePointer {storage} %int
        %zero = OpConstant %uint 0
        %last = OpConstant %uint {numbers - 1}
        %id = OpVariable %inputs Input
        %x = OpVariable %buffers StorageBuffer
        %y = OpVariable %buffers StorageBuffer
        %numbers = OpVariable %numberses {storage}
        %main = OpFunction %void None %function
        %start = OpLabel
        %ids = OpLoad %uint3 %id
        %i = OpCompositeExtract %uint %ids 0
        %from = OpAccessChain %elements %x %zero %i
        %to = OpAccessChain %elements %y %zero %i
        %at = OpAccessChain %number %numbers %last
        %a = OpLoad %int %from
        %b = OpLoad %int %at
        %sum = OpIAdd %int %a %b
        OpStore %to %sum
        OpReturn
        OpFunctionEnd
        """


@pytest.fixture(scope="session")
def write_payload() -> Callable[..., bytes]:
    """`write_payload(*kernels)`: what a library holds of them."""

    def string(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    def call(k: Kernel) -> bytes:
        types = b"".join(struct.pack("<BBH", *one) for one in k.types)
        tags = b"".join(string(tag.encode()) for tag in k.launch)
        name, count = string(k.name.encode()), struct.pack("<Q", len(k.types))
        extra = count + struct.pack("<i", 0) * len(k.types)
        return name + name + count + types + struct.pack("<Q", len(k.launch)) + tags + extra

    def shader(k: Kernel) -> bytes:
        head = struct.pack("<IQ", int(k.uniform_block), len(k.code) // 4)
        return string(k.name.encode()) + string(head + k.code)

    def write(*kernels: Kernel) -> bytes:
        count = struct.pack("<Q", len(kernels))
        calls, shaders = b"".join(map(call, kernels)), b"".join(map(shader, kernels))
        return string(b"vulkan") + count + calls + count + shaders

    return write
