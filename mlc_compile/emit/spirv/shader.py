"""What comes out: one kernel as a SPIR-V module."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shader:
    """A compute shader that is called as TVM's runtime calls them.

    Set 0 holds the buffers, binding i the i-th; numbers are 8 bytes apart in push constants, or
    in a uniform block at the binding after the last buffer.
    """

    name: str  # of the entry point, and of the kernel
    code: bytes  # SPIR-V 1.3, little-endian words
    uniform_block: bool  # numbers come in a uniform block, else as push constants
    local_size: tuple[int, int, int]  # threads of a block
    shared_bytes: int  # of a block; whole numbers below 32 bits take 4 bytes each
    capabilities: tuple[str, ...]  # what a device must enable; SPIR-V's names, sorted
