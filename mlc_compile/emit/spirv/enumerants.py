"""Operands that are numbers with names, as the SPIR-V specification lists them."""

from enum import IntEnum, IntFlag
from typing import Final

MAGIC: Final = 0x07230203
VERSION_1_3: Final = 0x00010300
GENERATOR: Final = 0  # unregistered


class Capability(IntEnum):
    """What a device may be asked to have; the names are part of `Shader`."""

    Shader = 1
    Float16 = 9
    GroupNonUniform = 61
    GroupNonUniformShuffle = 65
    StorageBuffer16BitAccess = 4433
    StorageBuffer8BitAccess = 4448


class StorageClass(IntEnum):
    """Where a variable lives."""

    Input = 1
    Uniform = 2
    Workgroup = 4
    Function = 7
    PushConstant = 9
    StorageBuffer = 12


class Decoration(IntEnum):
    """What is said of a result."""

    Block = 2
    ArrayStride = 6
    BuiltIn = 11
    Restrict = 19
    Aliased = 20
    Coherent = 23
    NonWritable = 24
    NonReadable = 25
    Binding = 33
    DescriptorSet = 34
    Offset = 35
    NoContraction = 42


class BuiltIn(IntEnum):
    """Inputs that the device sets."""

    WorkgroupId = 26
    LocalInvocationId = 27
    SubgroupLocalInvocationId = 41


class Scope(IntEnum):
    """Who takes part in an instruction."""

    Workgroup = 2
    Subgroup = 3


class MemorySemantics(IntFlag):
    """What a barrier orders."""

    AcquireRelease = 0x8
    UniformMemory = 0x40  # storage buffers too
    WorkgroupMemory = 0x100


class LoopControl(IntFlag):
    """A hint to the device's compiler."""

    Nothing = 0
    Unroll = 1


class MemoryAccess(IntFlag):
    """How a load or store is made."""

    Volatile = 1


ADDRESSING_LOGICAL: Final = 0
MEMORY_GLSL450: Final = 1
MODEL_GLCOMPUTE: Final = 5
MODE_LOCAL_SIZE: Final = 17
NO_CONTROL: Final = 0  # of a function, of a selection
