"""What each Vulkan kernel takes of a device, as the report tells it; knows no TVM."""

import math
from collections.abc import Sequence

import msgspec

from mlc_compile.artifact import DeviceNeeds


class ShaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel; sizes are in bytes."""

    kernel: str
    local_size: tuple[int, int, int]  # threads of a block along x, y and z
    shared_bytes: int  # per block
    buffers: int
    scalars: int
    uniform_block: bool  # the scalars are more than push constants hold
    capabilities: tuple[str, ...]  # SPIR-V's names, sorted
    code_bytes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return math.prod(self.local_size)


def needs(facts: Sequence[ShaderFacts], layout: str) -> DeviceNeeds:
    """What a device must have to run every one of some kernels, of which there is one at least."""
    x, y, z = (max(one.local_size[axis] for one in facts) for axis in range(3))
    return DeviceNeeds(
        layout=layout,
        capabilities=tuple(sorted({name for one in facts for name in one.capabilities})),
        threads=max(one.threads for one in facts),
        local_size=(x, y, z),
        shared_bytes=max(one.shared_bytes for one in facts),
        buffers=max(one.buffers for one in facts),
    )
