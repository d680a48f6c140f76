"""Device memory: one Vulkan buffer for each allocation, small ones kept for the next taker."""

from dataclasses import dataclass
from typing import Any, Final

from mlc_compile.runtime.vulkan.failure import no_room
from mlc_compile.runtime.vulkan.loader import Gpu

# VkMemoryPropertyFlagBits
LOCAL: Final = 1
VISIBLE: Final = 2
COHERENT: Final = 4
CACHED: Final = 8

# Memory by use: flags in order of wish; the first that a memory type has all of. Vulkan lists a
# type before those that have its flags and more: where there is memory that the host's CPU does
# not cache, a wish that does not name CACHED gets that.
ON_DEVICE: Final = (LOCAL,)
STREAMED: Final = (LOCAL | VISIBLE | COHERENT, LOCAL)  # weights, pages: read by the GPU alone
SHARED: Final = (LOCAL | VISIBLE | COHERENT | CACHED, *STREAMED)  # tokens, logits: by the host too
ON_HOST: Final = (VISIBLE | COHERENT | CACHED, VISIBLE | COHERENT)

UNIFIED: Final = ("integrated", "cpu")  # kinds of devices whose memory is the host's
GRAIN: Final = 256  # bytes; sizes are rounded up to it, and nothing is smaller
SMALL: Final = 1 << 20  # as logits are; a larger buffer is streamed, and not kept when it is freed
KEPT_ALL: Final = 32 << 20

# A handle names a buffer, and is no address. Handles lie further apart than any buffer is long,
# so that a handle with an offset added to it, which we refuse, is never another's.
HANDLE_BITS: Final = 40


@dataclass(slots=True, eq=False)
class Buffer:
    """Device memory. `mapped` is the host's address of it, 0 where it has none.

    What is not `cached` is slow for the host to read.
    """

    handle: int
    raw: Any  # VkBuffer
    memory: Any  # VkDeviceMemory
    nbytes: int  # what it holds; what was asked for may be less
    mapped: int
    cached: bool
    used: int = 0  # the last submission that names it


class Heap:
    """Makes and destroys buffers; a handle is never given to another buffer."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._made = 0
        self._spare: dict[int, list[Buffer]] = {}  # by size
        self._spare_bytes = 0

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes`, its bytes undefined; VulkanFailure if there is no room."""
        size = rounded(nbytes)
        spare = self._spare.get(size)
        if spare:
            self._spare_bytes -= size
            return spare.pop()
        return self.create(size, wishes_for(self._gpu.kind, size))

    def create(self, nbytes: int, wishes: tuple[int, ...]) -> Buffer:
        """A new buffer in the first kind of memory of `wishes` that the device has."""
        gpu, vk = self._gpu, self._gpu.vk
        info = vk.VkBufferCreateInfo(
            size=nbytes,
            usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT,
            sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
        )
        raw = memory = None
        try:
            raw = vk.vkCreateBuffer(gpu.device, info, None)
            needs = vk.vkGetBufferMemoryRequirements(gpu.device, raw)
            index = memory_type(gpu.memory_types, needs.memoryTypeBits, wishes)
            asked = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=index)
            memory = vk.vkAllocateMemory(gpu.device, asked, None)
            vk.vkBindBufferMemory(gpu.device, raw, memory, 0)
            flags = gpu.memory_types[index]
            mapped = self._map(memory) if wishes[0] & flags & VISIBLE else 0
        except vk.VkError as e:
            self._destroy(raw, memory)
            raise no_room(nbytes, gpu.name, e) from e
        self._made += 1
        return Buffer(self._made << HANDLE_BITS, raw, memory, nbytes, mapped, bool(flags & CACHED))

    def keep(self, buffer: Buffer) -> bool:
        """Whether `buffer`, which nobody holds any longer, stays for the next of its size.

        The device may still be using it: whoever takes it next writes in the queue's order.
        """
        if buffer.nbytes > SMALL or self._spare_bytes + buffer.nbytes > KEPT_ALL:
            return False
        self._spare.setdefault(buffer.nbytes, []).append(buffer)
        self._spare_bytes += buffer.nbytes
        return True

    def take_kept(self) -> list[Buffer]:
        """All that were kept, for their memory to be given back."""
        kept = [buffer for buffers in self._spare.values() for buffer in buffers]
        self._spare.clear()
        self._spare_bytes = 0
        return kept

    def destroy(self, buffer: Buffer) -> None:
        """Give the memory back; the device must have ended its work on the buffer."""
        self._destroy(buffer.raw, buffer.memory)

    def _destroy(self, raw: Any, memory: Any) -> None:
        vk, device = self._gpu.vk, self._gpu.device
        if raw is not None:
            vk.vkDestroyBuffer(device, raw, None)
        if memory is not None:
            vk.vkFreeMemory(device, memory, None)  # unmaps it too

    def _map(self, memory: Any) -> int:
        ffi, lib = self._gpu.vk.ffi, self._gpu.vk.lib
        place = ffi.new("void**")
        whole = (1 << 64) - 1  # VK_WHOLE_SIZE
        result = lib.vkMapMemory(self._gpu.device, memory, 0, whole, 0, place)
        if result != 0:
            raise self._gpu.vk.exception_codes[result]
        return int(ffi.cast("uintptr_t", place[0]))


def rounded(nbytes: int) -> int:
    """Bytes of the buffer that holds `nbytes`."""
    return max(-(-nbytes // GRAIN) * GRAIN, GRAIN)


def wishes_for(kind: str, nbytes: int) -> tuple[int, ...]:
    """The memory for a buffer on such a device.

    A GPU that shares the host's memory asks the CPU's caches before it reads what those may hold,
    which costs it bandwidth.
    """
    if kind not in UNIFIED:
        return ON_DEVICE
    return SHARED if nbytes <= SMALL else STREAMED


def memory_type(types: tuple[int, ...], allowed: int, wishes: tuple[int, ...]) -> int:
    """The first type with all flags of a wish, for the earliest wish that any type has."""
    able = [i for i in range(len(types)) if allowed >> i & 1]
    found = (i for wish in (*wishes, 0) for i in able if types[i] & wish == wish)
    return next(found)
