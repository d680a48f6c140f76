"""An opened GPU with its memory, queue, copies and launches: all that a caller needs of it."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from mlc_compile.runtime.vulkan.buffers import ON_HOST, Buffer, Heap
from mlc_compile.runtime.vulkan.commands import Queue
from mlc_compile.runtime.vulkan.failure import VulkanFailure, refused
from mlc_compile.runtime.vulkan.loader import Gpu, open_gpu
from mlc_compile.runtime.vulkan.pipelines import Pipeline, Pipelines
from mlc_compile.runtime.vulkan.transfers import Transfers

COMPUTE: Final = 1  # VK_PIPELINE_BIND_POINT_COMPUTE
STAGE: Final = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
UNIFORMS: Final = 1 << 20  # bytes of arguments in uniform blocks that are on their way at a time


class Machine:
    """Buffers are named by handles; of one thread, as Python's lock makes it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.heap = Heap(gpu)
        self.queue = Queue(gpu)
        self.pipelines = Pipelines(gpu)
        self._transfers = Transfers(gpu, self.heap, self.queue)
        self._buffers: dict[int, Buffer] = {}
        self._dying: list[Buffer] = []  # freed, but the device may still use them
        self._lib, self._ffi = gpu.vk.lib, gpu.vk.ffi
        self._uniform: Buffer | None = None
        self._uniform_taken = 0
        self._offset = self._ffi.new("uint32_t[1]")
        self._grid = gpu.limits.grid

    def allocate(self, nbytes: int) -> int:
        """The handle of a new buffer of `nbytes`; VulkanFailure if there is no room."""
        try:
            buffer = self.heap.allocate(nbytes)
        except VulkanFailure:
            self._dying += self.heap.take_kept()
            if not self._dying:
                raise
            self.wait()  # gives back what was freed
            buffer = self.heap.allocate(nbytes)
        self._buffers[buffer.handle] = buffer
        return buffer.handle

    def free(self, handle: int) -> None:
        """Forget a buffer; its memory lives until the device has ended its work on it."""
        buffer = self._buffers.pop(handle, None)
        if buffer is None or self.heap.keep(buffer):
            return
        self._dying.append(buffer)
        self._bury()

    def write(self, handle: int, offset: int, source: int, nbytes: int) -> None:
        """From the host's address `source`; it may change once this returns."""
        self._transfers.write(self._named(handle, offset + nbytes), offset, source, nbytes)

    def read(self, handle: int, offset: int, to: int, nbytes: int) -> None:
        """To the host's address `to`, after all work that was launched."""
        self._transfers.read(self._named(handle, offset + nbytes), offset, to, nbytes)

    def copy(self, source: int, offset: int, to: int, to_offset: int, nbytes: int) -> None:
        """Between two buffers."""
        self.queue.launched = True
        self._transfers.copy(
            self._named(source, offset + nbytes),
            offset,
            self._named(to, to_offset + nbytes),
            to_offset,
            nbytes,
        )

    def launch(
        self, pipeline: Pipeline, handles: tuple[int, ...], pods: Any, grid: Sequence[int]
    ) -> None:
        """Record one launch. `pods` is a cffi `char[]` of the other arguments, 8 bytes each."""
        queue, lib, nothing = self.queue, self._lib, self._ffi.NULL
        x, y, z = grid
        if x > self._grid[0] or y > self._grid[1] or z > self._grid[2]:
            raise self._too_many(pipeline, grid)
        try:
            buffers = [self._buffers[handle] for handle in handles]
        except KeyError as e:
            raise VulkanFailure(
                f"kernel {pipeline.name} was given a buffer that is not there", hint=""
            ) from e
        uniform = self._uniform_with(pods, pipeline.pod_bytes) if pipeline.uniform_block else None
        named = self.pipelines.bind(pipeline, handles, buffers, uniform)
        commands = queue.record()
        lib.vkCmdBindPipeline(commands, COMPUTE, pipeline.raw)
        dynamic = (0, nothing) if uniform is None else (1, self._offset)
        lib.vkCmdBindDescriptorSets(commands, COMPUTE, pipeline.layout, 0, 1, named, *dynamic)
        if uniform is None and pipeline.pod_bytes:
            lib.vkCmdPushConstants(commands, pipeline.layout, STAGE, 0, pipeline.pod_bytes, pods)
        lib.vkCmdDispatch(commands, x, y, z)
        current = queue.current
        for buffer in buffers:
            buffer.used = current
        queue.recorded_launch()

    def finish(self) -> None:
        """Return when all kernels and all copies on the device have ended."""
        if self.queue.launched:
            self.wait()

    def wait(self) -> None:
        """Return when the device has ended all that was asked of it."""
        self.queue.wait()
        self._uniform_taken = 0
        self._bury()

    def _named(self, handle: int, end: int) -> Buffer:
        buffer = self._buffers.get(handle)
        if buffer is None:
            raise VulkanFailure(f"{handle:#x} is no buffer of {self.gpu.name}", hint="")
        if end > buffer.nbytes:
            raise VulkanFailure(
                f"byte {end} is past the end of a buffer of {buffer.nbytes} bytes", hint=""
            )
        return buffer

    def _too_many(self, pipeline: Pipeline, grid: Sequence[int]) -> VulkanFailure:
        axis = next(i for i, most in enumerate(self._grid) if grid[i] > most)
        return VulkanFailure(
            f"kernel {pipeline.name} was launched with {grid[axis]} blocks along {'xyz'[axis]}, "
            f"{self.gpu.name} takes {self._grid[axis]}",
            hint="compile with a smaller --prefill-chunk",
        )

    def _uniform_with(self, pods: Any, nbytes: int) -> Buffer:
        """The buffer of uniform blocks, with `pods` at the place that `_offset` says."""
        if self._uniform is None:
            self._uniform = self.heap.create(UNIFORMS, ON_HOST)
        step = max(self.gpu.limits.uniform_alignment, 1)
        if self._uniform_taken + nbytes > UNIFORMS:
            self.wait()
        self._offset[0] = at = self._uniform_taken
        self._ffi.memmove(self._ffi.cast("char*", self._uniform.mapped + at), pods, nbytes)
        self._uniform_taken = -(-(at + nbytes) // step) * step
        return self._uniform

    def _bury(self) -> None:
        """Destroy what was freed and is no longer in use."""
        still: list[Buffer] = []
        for buffer in self._dying:
            if buffer.used > self.queue.done:
                still.append(buffer)
                continue
            self.pipelines.forget(buffer)
            self.heap.destroy(buffer)
        self._dying = still


@functools.cache
def the_machine() -> Machine:
    """This process's GPU; errors as for `open_gpu`, VulkanFailure if it cannot be set up."""
    gpu = open_gpu()
    try:
        return Machine(gpu)
    except gpu.vk.VkError as e:
        raise refused("be set up", e) from e
