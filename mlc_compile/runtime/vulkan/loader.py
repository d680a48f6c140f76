"""Find a GPU through the system's Vulkan loader and open it with the features it has.

The PyPI package `vulkan` is imported here alone, when a GPU is asked for: it opens the loader
(libvulkan) as it is imported. One GPU is opened per process, for good.
"""

import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mlc_compile.errors import TargetError
from mlc_compile.runtime.vulkan import features
from mlc_compile.runtime.vulkan.features import ARITHMETIC, STORAGE_8, SUBSET, Limits

PORTABILITY: Final = "VK_KHR_portability_enumeration"  # macOS: devices that are nearly Vulkan
API: Final = (1, 1)  # the least: SPIR-V 1.3 and 16-bit storage came with it
PACKAGE_HINT: Final = "pip install 'mlc_compile[vulkan]'"
LOADER_HINT: Final = "install a Vulkan driver: apt-get install libvulkan1 mesa-vulkan-drivers"
PREFERENCE: Final = ("discrete", "integrated", "virtual", "cpu", "other")
KINDS: Final = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}  # VkPhysicalDeviceType


@dataclass(frozen=True, slots=True)
class Gpu:
    """An opened device; `vk` is the package `vulkan`, handles are its own."""

    vk: Any
    instance: Any
    physical: Any
    device: Any
    queue: Any
    family: int
    name: str
    kind: str  # one of PREFERENCE
    api: tuple[int, int, int]
    driver: int
    capabilities: frozenset[str]  # of SPIR-V, enabled
    memory_types: tuple[int, ...]  # flags of each, VkMemoryPropertyFlagBits
    limits: Limits


def import_vulkan() -> Any:
    """The package `vulkan`; TargetError if it, or the system's Vulkan loader, is missing."""
    try:
        vk = importlib.import_module("vulkan")
    except ImportError as e:
        raise TargetError("the Python package vulkan is not installed", hint=PACKAGE_HINT) from e
    except OSError as e:
        raise TargetError("this machine has no Vulkan loader (libvulkan)", hint=LOADER_HINT) from e
    if not hasattr(vk, "vkCreateInstance"):
        place = vk.__file__ or "a folder without code"
        raise TargetError(f"the Python package vulkan is another: {place}", hint=PACKAGE_HINT)
    return vk


@functools.cache
def open_gpu() -> Gpu:
    """The best device of this machine: discrete before integrated, a CPU's last.

    TargetError where the package, the loader or a device with compute queues is missing.
    """
    vk = import_vulkan()
    with _quiet():
        instance = _create_instance(vk)
        found = _physical_devices(vk, instance)
    usable = [p for p in found if _compute_family(vk, p) is not None and _api(vk, p) >= API]
    if not usable:
        raise TargetError(
            f"no Vulkan device with Vulkan {API[0]}.{API[1]} and a compute queue was found",
            hint=LOADER_HINT,
        )
    return _open(vk, instance, usable[best([_kind(vk, p) for p in usable])])


def best(kinds: Sequence[str]) -> int:
    """Which of some devices to open, by their kinds; the first of several of one kind."""
    return min(range(len(kinds)), key=lambda i: PREFERENCE.index(kinds[i]))


def describe() -> str:
    """`llvmpipe (cpu, Vulkan 1.3.230)`; errors as for `open_gpu`."""
    gpu = open_gpu()
    return f"{gpu.name} ({gpu.kind}, Vulkan {'.'.join(map(str, gpu.api))})"


@contextmanager
def _quiet() -> Iterator[None]:
    """Drivers that look for a window system complain on stderr where this variable is unset."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = "/"
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


def _create_instance(vk: Any) -> Any:
    application = vk.VkApplicationInfo(
        pApplicationName="mlc_compile", apiVersion=vk.VK_MAKE_VERSION(1, 2, 0)
    )
    try:
        known = {e.extensionName for e in vk.vkEnumerateInstanceExtensionProperties(None)}
        portable = PORTABILITY in known
        info = vk.VkInstanceCreateInfo(
            flags=1 if portable else 0,  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
            pApplicationInfo=application,
            ppEnabledExtensionNames=[PORTABILITY] if portable else [],
        )
        return vk.vkCreateInstance(info, None)
    except vk.VkError as e:
        raise TargetError(
            f"Vulkan found no driver on this machine ({type(e).__name__})", hint=LOADER_HINT
        ) from e


def _physical_devices(vk: Any, instance: Any) -> list[Any]:
    try:
        return list(vk.vkEnumeratePhysicalDevices(instance))
    except vk.VkError:
        return []


def _kind(vk: Any, physical: Any) -> str:
    return KINDS.get(vk.vkGetPhysicalDeviceProperties(physical).deviceType, "other")


def _api(vk: Any, physical: Any) -> tuple[int, int, int]:
    return _version(vk.vkGetPhysicalDeviceProperties(physical).apiVersion)


def _version(packed: int) -> tuple[int, int, int]:
    return packed >> 22 & 0x7F, packed >> 12 & 0x3FF, packed & 0xFFF


def _compute_family(vk: Any, physical: Any) -> int | None:
    """A queue family that computes; one that only computes and copies if there is one."""
    flags = [f.queueFlags for f in vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)]
    able = [i for i, f in enumerate(flags) if f & vk.VK_QUEUE_COMPUTE_BIT]
    apart = [i for i in able if not flags[i] & vk.VK_QUEUE_GRAPHICS_BIT]
    return next(iter(apart + able), None)


def _open(vk: Any, instance: Any, physical: Any) -> Gpu:
    properties = vk.vkGetPhysicalDeviceProperties(physical)
    family = _compute_family(vk, physical)
    assert family is not None
    extensions = {e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(physical, None)}
    chain = features.features(vk, physical, _version(properties.apiVersion), extensions)
    queue = vk.VkDeviceQueueCreateInfo(
        queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0]
    )
    wanted = sorted(extensions & {STORAGE_8, ARITHMETIC, SUBSET})
    info = vk.VkDeviceCreateInfo(
        pNext=chain["all"], pQueueCreateInfos=[queue], ppEnabledExtensionNames=wanted
    )
    try:
        device = vk.vkCreateDevice(physical, info, None)
    except vk.VkError as e:
        raise TargetError(
            f"{properties.deviceName} cannot be opened ({type(e).__name__})",
            hint="check that no other program holds the GPU, and its driver's log",
        ) from e
    memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
    subgroup = features.subgroups(vk, physical)
    return Gpu(
        vk=vk,
        instance=instance,
        physical=physical,
        device=device,
        queue=vk.vkGetDeviceQueue(device, family, 0),
        family=family,
        name=properties.deviceName,
        kind=_kind(vk, physical),
        api=_version(properties.apiVersion),
        driver=int(properties.driverVersion),
        capabilities=features.capabilities(vk, chain, subgroup),
        memory_types=tuple(
            memory.memoryTypes[i].propertyFlags for i in range(memory.memoryTypeCount)
        ),
        limits=features.limits(properties.limits, memory, subgroup.subgroupSize),
    )
