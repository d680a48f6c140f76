"""What this machine lacks to run a Vulkan library; asks drivers in a process of their own.

A driver may crash, and loading one is nothing that a compiler should do to itself.
"""

import ctypes.util
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec

from mlc_compile.emit.tool import ask, environment
from mlc_compile.target import Device

PACKAGE: Final = "vulkan"  # of PyPI: calls the loader
PACKAGE_FIX: Final = "pip install 'mlc_compile[vulkan]'"
LOADER_FIX: Final = "apt-get install libvulkan1"
DRIVER_FIX: Final = "install your GPU's driver, or Mesa's: apt-get install mesa-vulkan-drivers"

# Prints what `Seen` holds of each device that has Vulkan 1.1, which brings 16-bit storage.
QUESTION: Final = """
import json, vulkan as vk
version = vk.VK_MAKE_VERSION(1, 1, 0)
info = vk.VkInstanceCreateInfo(pApplicationInfo=vk.VkApplicationInfo(apiVersion=version))
instance = vk.vkCreateInstance(info, None)
names = ["maxComputeWorkGroupInvocations", "maxComputeSharedMemorySize", "maxStorageBufferRange",
         "maxPerStageDescriptorStorageBuffers"]
def features(one):
    found = vk.ffi.new("VkPhysicalDeviceFeatures2*")
    found.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2
    f16 = vk.ffi.new("VkPhysicalDeviceShaderFloat16Int8Features*")
    f16.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES
    half = vk.ffi.new("VkPhysicalDevice16BitStorageFeatures*")
    half.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES
    byte = vk.ffi.new("VkPhysicalDevice8BitStorageFeatures*")
    byte.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES
    found.pNext, f16.pNext, half.pNext = f16, half, byte
    vk.vkGetPhysicalDeviceFeatures2(one, found)
    return [bool(f16.shaderFloat16 and half.storageBuffer16BitAccess),
            bool(byte.storageBuffer8BitAccess)]
told = []
for one in vk.vkEnumeratePhysicalDevices(instance):
    is_ = vk.vkGetPhysicalDeviceProperties(one)
    if is_.apiVersion >= version:
        told.append([is_.deviceName, *(getattr(is_.limits, n) for n in names), *features(one)])
print(json.dumps(told))
"""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A device and its limits; sizes in bytes."""

    name: str
    threads: int
    shared_bytes: int
    binding_bytes: int
    buffers: int
    f16: bool  # in buffers and in arithmetic
    int8: bool  # in buffers


@dataclass(frozen=True, slots=True)
class Lack:
    """What is not here, and the command that brings it; "" where none does."""

    what: str
    fix: str = ""


def missing() -> Lack | None:
    """The first thing that is missing to use any Vulkan device here."""
    if importlib.util.find_spec(PACKAGE) is None:
        return Lack("the Python package vulkan is not installed", PACKAGE_FIX)
    if ctypes.util.find_library(PACKAGE) is None:
        return Lack("there is no Vulkan loader (libvulkan)", LOADER_FIX)
    found = devices()
    if isinstance(found, str):
        return Lack(f"there is no Vulkan device: {found}", DRIVER_FIX)
    return None


def lacking(wanted: Device) -> Lack | None:
    """The first thing that is missing to run kernels that are made for `wanted`."""
    lack = missing()
    if lack is not None:
        return lack
    found = devices()
    assert not isinstance(found, str), "something was missing"
    short = [next(_shortages(wanted, one), None) for one in found]
    return None if None in short else Lack(next(filter(None, short)))


@cache
def devices() -> tuple[Seen, ...] | str:
    """The devices that drivers report, one at least; or why there is none."""
    answer = ask([sys.executable, "-P", "-c", QUESTION], {"XDG_RUNTIME_DIR": "/", **environment()})
    if answer.fault:
        return answer.fault
    return (
        msgspec.json.decode(answer.out, type=tuple[Seen, ...])
        or "drivers report none with Vulkan 1.1"
    )


def _shortages(wanted: Device, seen: Seen) -> Iterator[str]:
    """What a device has not, or less of, than the target's."""
    for what, asked, most in (
        ("threads a block", wanted.threads, seen.threads),
        ("bytes of shared memory", wanted.shared_bytes, seen.shared_bytes),
        ("bytes of a buffer", wanted.binding_bytes, seen.binding_bytes),
        ("buffers a kernel", wanted.buffers, seen.buffers),
    ):
        if asked is not None and asked > most:
            yield f"{seen.name} allows {most:,} {what}, the target {asked:,}"
    for what, needed, there in (
        ("float16", wanted.f16, seen.f16),
        ("8-bit storage", wanted.int8, seen.int8),
    ):
        if needed and not there:
            yield f"{seen.name} has no {what}, the target has"
