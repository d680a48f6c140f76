"""What a GPU has that SPIR-V may ask for: features to enable, subgroups, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Extensions whose features shaders may use; since Vulkan 1.2 they are part of it.
STORAGE_8: Final = "VK_KHR_8bit_storage"
ARITHMETIC: Final = "VK_KHR_shader_float16_int8"
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


def features(
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


def subgroups(vk: Any, physical: Any) -> Any:
    """VkPhysicalDeviceSubgroupProperties."""
    found = vk.ffi.new("VkPhysicalDeviceSubgroupProperties*")
    found.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES
    properties = vk.ffi.new("VkPhysicalDeviceProperties2*")
    properties.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
    properties.pNext = found
    vk.vkGetPhysicalDeviceProperties2(physical, properties)
    return found


def capabilities(vk: Any, chain: Mapping[str, Any], subgroup: Any) -> frozenset[str]:
    """What SPIR-V may declare, once all of `chain` is enabled."""
    allowed = {
        capability
        for capability, (structure, field) in FEATURES.items()
        if structure in chain and getattr(chain[structure], field)
    }
    if subgroup.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        allowed |= {c for c, bit in SUBGROUP.items() if subgroup.supportedOperations & bit}
    return frozenset({"Shader", "Matrix"} | allowed)


def limits(limits: Any, memory: Any, subgroup: int) -> Limits:
    """What Vulkan's structures of these names tell."""
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
