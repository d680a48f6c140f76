"""Shaders as the device runs them, and the sets that name the buffers of a launch.

TVM's calling convention: buffer i is binding i of set 0; the other arguments lie 8 bytes apart
in push constants, or, where they are many, in a uniform block at the binding after the buffers.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlc_compile.errors import TargetError, listing
from mlc_compile.runtime.vulkan.buffers import Buffer
from mlc_compile.runtime.vulkan.failure import VulkanFailure, refused
from mlc_compile.runtime.vulkan.features import FEATURES, SUBGROUP
from mlc_compile.runtime.vulkan.loader import Gpu

SETS: Final = 256  # in a pool
PER_SET: Final = 12  # buffers of a launch, on the average, for which a pool has room
PAGE: Final = 4096  # TVM's pools round sizes up to it: no tensor is in the last part of one
HEADER: Final = 5  # words before the first instruction of SPIR-V
CAPABILITY: Final = 17  # OpCapability
# SPIR-V's number -> name, of all that a device may lack.
NUMBERS: Final[Mapping[int, str]] = {
    9: "Float16",
    10: "Float64",
    11: "Int64",
    22: "Int16",
    39: "Int8",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
}
assert set(NUMBERS.values()) == {*FEATURES, *SUBGROUP}


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A shader, ready to be launched."""

    name: str
    raw: Any  # VkPipeline
    layout: Any  # VkPipelineLayout
    set_layout: Any  # VkDescriptorSetLayout
    buffers: int
    pod_bytes: int
    uniform_block: bool


class Pipelines:
    """Makes pipelines, and the descriptor sets for their launches, each once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._vk = gpu, gpu.vk
        self._cache = gpu.vk.vkCreatePipelineCache(
            gpu.device, gpu.vk.VkPipelineCacheCreateInfo(initialDataSize=0), None
        )
        self._pool: Any = None
        self._room = 0  # sets that the pool may still give
        self._sets: dict[tuple[Pipeline, tuple[int, ...]], Any] = {}
        self._naming: defaultdict[int, set[tuple[Pipeline, tuple[int, ...]]]] = defaultdict(set)
        self._free: defaultdict[Pipeline, list[Any]] = defaultdict(list)

    @property
    def sets(self) -> int:
        """How many sets name buffers that are still there."""
        return len(self._sets)

    def create(
        self, code: bytes, name: str, buffers: int, pods: int, uniform_block: bool
    ) -> Pipeline:
        """Compile SPIR-V with the entry point `name`, that takes `buffers` and then `pods`.

        TargetError if the shader needs what the device lacks, VulkanFailure if its driver
        refuses it.
        """
        self.require(code, name)
        vk, device = self._vk, self._gpu.device
        try:
            set_layout = self._set_layout(buffers, uniform_block)
            pushed = 0 if uniform_block else 8 * pods
            layout = self._layout(set_layout, pushed)
            info = vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code)
            module = vk.vkCreateShaderModule(device, info, None)
            stage = vk.VkPipelineShaderStageCreateInfo(
                stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName=name
            )
            asked = vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)
            made = vk.vkCreateComputePipelines(device, self._cache, 1, [asked], None)
            vk.vkDestroyShaderModule(device, module, None)
        except vk.VkError as e:
            raise refused(f"compile kernel {name}", e) from e
        return Pipeline(name, made[0], layout, set_layout, buffers, 8 * pods, uniform_block)

    def bind(
        self,
        pipeline: Pipeline,
        handles: tuple[int, ...],
        buffers: Sequence[Buffer],
        uniform: Buffer | None = None,
    ) -> Any:
        """The set that names `buffers`, as VkDescriptorSet[1]; `uniform` holds the other arguments.

        `handles` are those of `buffers`; `uniform` is the same for all calls.
        """
        key = (pipeline, handles)
        found = self._sets.get(key)
        return self._make_set(key, buffers, uniform) if found is None else found

    def forget(self, buffer: Buffer) -> None:
        """`buffer` is about to be destroyed, and no launch that names it is still to run."""
        for key in self._naming.pop(buffer.handle, ()):
            made = self._sets.pop(key, None)
            if made is not None:
                self._free[key[0]].append(made)

    def _make_set(
        self,
        key: tuple[Pipeline, tuple[int, ...]],
        buffers: Sequence[Buffer],
        uniform: Buffer | None,
    ) -> Any:
        pipeline, handles = key
        spare = self._free[pipeline]
        made = spare.pop() if spare else self._allocate(pipeline)
        self._write(made[0], pipeline, buffers, uniform)
        self._sets[key] = made
        for handle in handles:
            self._naming[handle].add(key)
        return made

    def _allocate(self, pipeline: Pipeline) -> Any:
        vk, device = self._vk, self._gpu.device
        layouts = [pipeline.set_layout]
        for fresh in (False, True):
            if fresh or self._room == 0:
                self._pool, self._room = self._new_pool(), SETS
            asked = vk.VkDescriptorSetAllocateInfo(descriptorPool=self._pool, pSetLayouts=layouts)
            try:
                made = vk.vkAllocateDescriptorSets(device, asked)
            except (vk.VkErrorOutOfPoolMemory, vk.VkErrorFragmentedPool) as e:
                failure = refused(f"take the arguments of kernel {pipeline.name}", e)
                continue
            self._room -= 1
            return vk.ffi.new("VkDescriptorSet[1]", [made[0]])
        raise failure

    def _write(
        self, made: Any, pipeline: Pipeline, buffers: Sequence[Buffer], uniform: Buffer | None
    ) -> None:
        vk, most = self._vk, self._gpu.limits.binding_bytes
        storage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        largest = max((buffer.nbytes for buffer in buffers), default=0)
        if largest > most + PAGE:
            raise VulkanFailure(
                f"kernel {pipeline.name} takes a buffer of {largest:,} bytes, "
                f"{self._gpu.name} shows a kernel {most:,}",
                hint="build it for a target whose devices show no more, or a smaller --context",
            )
        bound = [(storage, buffer.raw, min(buffer.nbytes, most)) for buffer in buffers]
        if pipeline.uniform_block:
            assert uniform is not None
            dynamic = vk.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC
            bound.append((dynamic, uniform.raw, pipeline.pod_bytes))
        writes = [
            vk.VkWriteDescriptorSet(
                dstSet=made,
                dstBinding=i,
                descriptorCount=1,
                descriptorType=kind,
                pBufferInfo=[vk.VkDescriptorBufferInfo(raw, 0, nbytes)],
            )
            for i, (kind, raw, nbytes) in enumerate(bound)
        ]
        if writes:
            vk.vkUpdateDescriptorSets(self._gpu.device, len(writes), writes, 0, None)

    def _new_pool(self) -> Any:
        vk = self._vk
        sizes = [
            vk.VkDescriptorPoolSize(
                type=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=SETS * PER_SET
            ),
            vk.VkDescriptorPoolSize(
                type=vk.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, descriptorCount=SETS
            ),
        ]
        info = vk.VkDescriptorPoolCreateInfo(maxSets=SETS, pPoolSizes=sizes)
        return vk.vkCreateDescriptorPool(self._gpu.device, info, None)

    def _set_layout(self, buffers: int, uniform_block: bool) -> Any:
        vk = self._vk
        kinds = [vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER] * buffers
        if uniform_block:
            kinds.append(vk.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC)
        bindings = [
            vk.VkDescriptorSetLayoutBinding(
                binding=i,
                descriptorType=kind,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for i, kind in enumerate(kinds)
        ]
        info = vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings)
        return vk.vkCreateDescriptorSetLayout(self._gpu.device, info, None)

    def _layout(self, set_layout: Any, pushed: int) -> Any:
        vk = self._vk
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        ranges = [vk.VkPushConstantRange(stageFlags=stage, offset=0, size=pushed)]
        info = vk.VkPipelineLayoutCreateInfo(
            pSetLayouts=[set_layout], pPushConstantRanges=ranges if pushed else []
        )
        return vk.vkCreatePipelineLayout(self._gpu.device, info, None)

    def require(self, code: bytes, name: str) -> None:
        """TargetError if a kernel needs what the device lacks."""
        missing = [c for c in capabilities(code) if c not in self._gpu.capabilities]
        if missing:
            raise TargetError(
                f"{self._gpu.name} lacks {listing(missing)}, which kernel {name} needs",
                hint="build the artifact for a target whose device has less",
            )


def capabilities(code: bytes) -> tuple[str, ...]:
    """What SPIR-V declares that a device may lack, by its names in SPIR-V."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found, at = [], HEADER
    while at < len(words) and words[at] & 0xFFFF == CAPABILITY:  # they come before all else
        found.append(NUMBERS.get(words[at + 1]))
        at += words[at] >> 16
    return tuple(name for name in found if name is not None)
