"""The payload of a Vulkan module, byte by byte: TVM's wheels have no writer to compare with."""

import struct

import pytest

from mlc_compile.emit.device_blob import KernelEntry
from mlc_compile.emit.spirv import Shader
from mlc_compile.emit.vulkan.payload import write_vulkan

WORDS = struct.pack("<3I", 0x07230203, 0x00010300, 0)


def shader(name, code=WORDS, *, block=False):
    return Shader(name, code, block, (64, 1, 1), 0, ("Shader",))


def entry(name, *types, launch=("blockIdx.x", "threadIdx.x")):
    return KernelEntry(name, name, types, launch, (0,) * len(types))


def u64(value):
    return value.to_bytes(8, "little")


def string(text):
    return u64(len(text)) + text


def test_a_payload_is_these_bytes():
    handle, int32 = (3, 64, 1), (0, 32, 1)
    written = write_vulkan(
        [entry("a", handle, handle, int32), entry("b", handle, launch=("threadIdx.x",))],
        [shader("a"), shader("b", WORDS + WORDS, block=True)],
    )
    kernels = (
        u64(2)
        + string(b"a")
        + string(b"a")
        + (u64(3) + b"\x03\x40\x01\x00" * 2 + b"\x00\x20\x01\x00")
        + (u64(2) + string(b"blockIdx.x") + string(b"threadIdx.x"))
        + (u64(3) + bytes(12))
        + string(b"b")
        + string(b"b")
        + (u64(1) + b"\x03\x40\x01\x00")
        + (u64(1) + string(b"threadIdx.x"))
        + (u64(1) + bytes(4))
    )
    code = (
        u64(2)
        + (string(b"a") + string(bytes(4) + u64(3) + WORDS))
        + (string(b"b") + string(b"\x01\x00\x00\x00" + u64(6) + WORDS * 2))
    )
    assert written == string(b"vulkan") + kernels + code


@pytest.mark.parametrize("names", [["a"], ["b", "a"], ["a", "b", "c"]])
def test_a_kernel_without_its_shader_is_our_bug(names):
    with pytest.raises(AssertionError, match="a shader for each kernel"):
        write_vulkan([entry("a"), entry("b")], [shader(name) for name in names])


def test_half_a_word_is_our_bug():
    with pytest.raises(AssertionError, match="whole number of words"):
        write_vulkan([entry("a")], [shader("a", WORDS[:-2])])
