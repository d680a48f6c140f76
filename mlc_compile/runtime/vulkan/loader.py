"""Find a GPU through the system's Vulkan loader and open it with the features it has.

The PyPI package `vulkan` is imported here alone, when a GPU is asked for: it opens the loader
(libvulkan) as it is imported. One GPU is opened per process, for good.
"""

import functools
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mlc_compile.errors import TargetError

API: Final = (1, 1)  # the least: SPIR-V 1.3 and 16-bit storage came with it
PACKAGE_HINT: Final = "pip install 'mlc_compile[vulkan]'"
LOADER_HINT: Final = "install a Vulkan driver: apt-get install libvulkan1 mesa-vulkan-drivers"
PREFERENCE: Final = ("discrete", "integrated", "virtual", "cpu", "other")
KINDS: Final = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}  # VkPhysicalDeviceType

# Extensions whose features shaders may use; since Vulkan 1.2 they are part of it.
STORAGE_8: Final = "VK_KHR_8bit_storage"
ARITHMETIC: Final = "VK_KHR_shader_float16_int8"
PORTABILITY: Final = "VK_KHR_portability_enumeration"  # macOS: devices that are nearly Vulkan
SUBSET: Final = "VK_KHR_portability_subset"  # must be enabled where a device has it

# SPIR-V capability -> (structure, field) of the Vulkan feature that allows it.
FEATURES: Final[Mapping[str, tuple[str, str]]] = {
    "Float64": ("core", "shaderFloat64"),
    "Int64": ("core", "shaderInt64"),
    "Int16": ("core", "shaderInt16"),
    "StorageBuffer16BitAccess": ("storage16", "storageBuffer16BitAccess"),
    "UniformAndStorageBuffer16BitAccess": ("storage16", "uniformAndStorageBuffer16BitAccess"),
    "StoragePushConstant16": ("storage16", "storagePushConstant16"),
    "StorageBuffer8BitAccess": ("storage8", "storageBuffer8BitAccess"),
    "UniformAndStorageBuffer8BitAccess": ("storage8", "uniformAndStorageBuffer8BitAccess"),
    "StoragePushConstant8": ("storage8", "storagePushConstant8"),
    "Float16": ("arithmetic", "shaderFloat16"),
    "Int8": ("arithmetic", "shaderInt8"),
}
# SPIR-V capability -> bit of VkSubgroupFeatureFlagBits.
SUBGROUP: Final[Mapping[str, int]] = {
    "GroupNonUniform": 0x01,
    "GroupNonUniformVote": 0x02,
    "GroupNonUniformArithmetic": 0x04,
    "GroupNonUniformBallot": 0x08,
    "GroupNonUniformShuffle": 0x10,
    "GroupNonUniformShuffleRelative": 0x20,
    "GroupNonUniformClustered": 0x40,
    "GroupNonUniformQuad": 0x80,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device promises, in bytes and counts."""

    binding_bytes: int  # the most of a buffer that a shader sees
    push_bytes: int
    uniform_alignment: int
    grid: tuple[int, int, int]
    threads: int  # of a block
    local_size: tuple[int, int, int]  # threads of a block along each axis
    shared_bytes: int  # of a block
    buffers: int  # of a kernel
    subgroup: int
    memory_bytes: int  # of the largest heap that is the device's own


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
        return importlib.import_module("vulkan")
    except ImportError as e:
        raise TargetError("the Python package vulkan is not installed", hint=PACKAGE_HINT) from e
    except OSError as e:
        raise TargetError("this machine has no Vulkan loader (libvulkan)", hint=LOADER_HINT) from e


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
    known = {e.extensionName for e in vk.vkEnumerateInstanceExtensionProperties(None)}
    portable = PORTABILITY in known
    application = vk.VkApplicationInfo(
        pApplicationName="mlc_compile", apiVersion=vk.VK_MAKE_VERSION(1, 2, 0)
    )
    info = vk.VkInstanceCreateInfo(
        flags=1 if portable else 0,  # VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        pApplicationInfo=application,
        ppEnabledExtensionNames=[PORTABILITY] if portable else [],
    )
    try:
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
    chain = _features(vk, physical, _version(properties.apiVersion), extensions)
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
    subgroup = _subgroup(vk, physical)
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
        capabilities=_capabilities(vk, chain, subgroup),
        memory_types=tuple(
            memory.memoryTypes[i].propertyFlags for i in range(memory.memoryTypeCount)
        ),
        limits=_limits(properties.limits, memory, subgroup.subgroupSize),
    )


def _features(
    vk: Any, physical: Any, api: tuple[int, int, int], extensions: set[str]
) -> dict[str, Any]:
    """What the device has, as structures to enable just that: "all" is the head of the chain."""
    ffi = vk.ffi
    chain: dict[str, Any] = {"storage16": ffi.new("VkPhysicalDevice16BitStorageFeatures*")}
    chain["storage16"].sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES
    if api >= (1, 2) or STORAGE_8 in extensions:
        chain["storage8"] = ffi.new("VkPhysicalDevice8BitStorageFeatures*")
        chain["storage8"].sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES
    if api >= (1, 2) or ARITHMETIC in extensions:
        chain["arithmetic"] = ffi.new("VkPhysicalDeviceShaderFloat16Int8Features*")
        chain[
            "arithmetic"
        ].sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES
    every = ffi.new("VkPhysicalDeviceFeatures2*")
    every.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2
    before = every
    for link in chain.values():
        before.pNext = link
        before = link
    vk.vkGetPhysicalDeviceFeatures2(physical, every)
    _keep_only(vk, every.features)
    return {"all": every, "core": every.features, **chain}


def _keep_only(vk: Any, features: Any) -> None:
    """Leave off the core features that we never use: robust access costs time."""
    kept = {field for structure, field in FEATURES.values() if structure == "core"}
    for name, _ in vk.ffi.typeof("VkPhysicalDeviceFeatures").fields:
        if name not in kept:
            setattr(features, name, 0)


def _subgroup(vk: Any, physical: Any) -> Any:
    found = vk.ffi.new("VkPhysicalDeviceSubgroupProperties*")
    found.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES
    properties = vk.ffi.new("VkPhysicalDeviceProperties2*")
    properties.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
    properties.pNext = found
    vk.vkGetPhysicalDeviceProperties2(physical, properties)
    return found


def _capabilities(vk: Any, chain: Mapping[str, Any], subgroup: Any) -> frozenset[str]:
    allowed = {
        capability
        for capability, (structure, field) in FEATURES.items()
        if structure in chain and getattr(chain[structure], field)
    }
    if subgroup.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        allowed |= {c for c, bit in SUBGROUP.items() if subgroup.supportedOperations & bit}
    return frozenset({"Shader", "Matrix"} | allowed)


def _limits(limits: Any, memory: Any, subgroup: int) -> Limits:
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    own = [heap.size for heap in heaps if heap.flags & 1]  # VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    return Limits(
        binding_bytes=limits.maxStorageBufferRange,
        push_bytes=limits.maxPushConstantsSize,
        uniform_alignment=limits.minUniformBufferOffsetAlignment,
        grid=_triple(limits.maxComputeWorkGroupCount),
        threads=limits.maxComputeWorkGroupInvocations,
        local_size=_triple(limits.maxComputeWorkGroupSize),
        shared_bytes=limits.maxComputeSharedMemorySize,
        buffers=min(
            limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers
        ),
        subgroup=subgroup,
        memory_bytes=max(own or [heap.size for heap in heaps]),
    )


def _triple(array: Any) -> tuple[int, int, int]:
    x, y, z = array
    return x, y, z
