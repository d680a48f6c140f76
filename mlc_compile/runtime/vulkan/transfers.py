"""Copies between the host's memory and buffers, and between buffers.

What goes to a device is taken when the call is made: the caller may change it at once. What
comes from a device is there when the call returns.
"""

import ctypes
from typing import Any, Final

from mlc_compile.runtime.vulkan.buffers import ON_HOST, Buffer, Heap
from mlc_compile.runtime.vulkan.commands import Queue
from mlc_compile.runtime.vulkan.loader import Gpu

INLINE: Final = 65536  # bytes that a command may carry itself, in words of four
UNCACHED: Final = 4096  # bytes that the host reads itself from memory that is slow to read
STAGING: Final = 16 << 20  # bytes that are on their way at a time


class Transfers:
    """Copies in the order of the queue; memory that the host sees is written straight."""

    def __init__(self, gpu: Gpu, heap: Heap, queue: Queue) -> None:
        self._heap, self._queue = heap, queue
        self._lib, self._ffi = gpu.vk.lib, gpu.vk.ffi
        self._region = self._ffi.new("VkBufferCopy*")
        self._staging: Buffer | None = None
        self._taken = 0  # bytes of it

    def write(self, to: Buffer, offset: int, source: int, nbytes: int) -> None:
        """`nbytes` from the host's address `source` to `to`, from its byte `offset` on."""
        if nbytes == 0:
            return
        if to.mapped and to.used <= self._queue.done:
            ctypes.memmove(to.mapped + offset, source, nbytes)
        elif nbytes <= INLINE and nbytes % 4 == 0 and offset % 4 == 0:
            data = self._ffi.cast("void*", source)
            self._lib.vkCmdUpdateBuffer(self._queue.record(), to.raw, offset, nbytes, data)
            to.used = self._queue.current
        else:
            self._write_staged(to, offset, source, nbytes)

    def read(self, source: Buffer, offset: int, to: int, nbytes: int) -> None:
        """`nbytes` of `source`, from its byte `offset` on, to the host's address `to`."""
        if nbytes == 0:
            return
        if source.mapped and (source.cached or nbytes <= UNCACHED):
            if source.used > self._queue.done:
                self._queue.wait()
            ctypes.memmove(to, source.mapped + offset, nbytes)
            return
        for start in range(0, nbytes, STAGING):
            size = min(STAGING, nbytes - start)
            staging, _ = self._room(STAGING)
            self.copy(source, offset + start, staging, 0, size)
            self._queue.wait()
            ctypes.memmove(to + start, staging.mapped, size)

    def copy(self, source: Buffer, offset: int, to: Buffer, to_offset: int, nbytes: int) -> None:
        """`nbytes` between buffers; the ranges do not overlap."""
        if nbytes == 0:
            return
        region = self._region
        region.srcOffset, region.dstOffset, region.size = offset, to_offset, nbytes
        self._lib.vkCmdCopyBuffer(self._queue.record(), source.raw, to.raw, 1, region)
        source.used = to.used = self._queue.current

    def _write_staged(self, to: Buffer, offset: int, source: int, nbytes: int) -> None:
        for start in range(0, nbytes, STAGING):
            size = min(STAGING, nbytes - start)
            staging, at = self._room(size)
            ctypes.memmove(staging.mapped + at, source + start, size)
            self.copy(staging, at, to, offset + start, size)

    def _room(self, nbytes: int) -> tuple[Buffer, int]:
        """The staging buffer, and where in it `nbytes` are free."""
        if self._staging is None:
            self._staging = self._heap.create(STAGING, ON_HOST)
        if self._staging.used <= self._queue.done:
            self._taken = 0
        elif self._taken + nbytes > STAGING:
            self._queue.wait()
            self._taken = 0
        at = self._taken
        self._taken += -(-nbytes // 4) * 4
        return self._staging, at


def address_of(array: Any) -> int:
    """The host's address of a numpy array's first byte."""
    return int(array.ctypes.data)
