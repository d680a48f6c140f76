"""The device's queue: commands are recorded, submitted in batches, and run in their order.

Submissions are numbered from 1. `current` is the one being recorded, `done` the last that is
known to have ended; whoever wants to read what the device wrote calls `wait`.
"""

from typing import Any, Final

from mlc_compile.runtime.vulkan.failure import refused
from mlc_compile.runtime.vulkan.loader import Gpu

BATCH: Final = 32  # launches in a submission: the device starts while the rest is recorded
SLOTS: Final = 8  # command buffers, each in flight or being recorded
FOREVER: Final = (1 << 64) - 1  # nanoseconds


class Queue:
    """Records into one command buffer at a time; of one thread."""

    def __init__(self, gpu: Gpu) -> None:
        vk = gpu.vk
        self.current = 1
        self.done = 0
        self.launched = False  # whether a launch was recorded or runs: there is work to await
        self._gpu, self._lib, self._ffi = gpu, vk.lib, vk.ffi
        pool = vk.VkCommandPoolCreateInfo(
            flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=gpu.family
        )
        self._pool = vk.vkCreateCommandPool(gpu.device, pool, None)
        asked = vk.VkCommandBufferAllocateInfo(
            commandPool=self._pool,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=SLOTS,
        )
        self._buffers = list(vk.vkAllocateCommandBuffers(gpu.device, asked))
        self._fences = [self._fence() for _ in range(SLOTS)]
        self._holders = [self._ffi.new("VkCommandBuffer*", buffer) for buffer in self._buffers]
        self._submits = [self._submission(holder) for holder in self._holders]
        self._begin = self._ffi.new("VkCommandBufferBeginInfo*")
        self._begin.sType = vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        self._work = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | vk.VK_PIPELINE_STAGE_TRANSFER_BIT
        self._host = vk.VK_PIPELINE_STAGE_HOST_BIT
        everything = vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT
        self._between = self._barrier(everything)
        self._to_host = self._barrier(vk.VK_ACCESS_HOST_READ_BIT)
        self._open: Any = None  # the command buffer being recorded
        self._recorded = 0

    def record(self) -> Any:
        """The command buffer to record the next command in, after all that were before it."""
        if self._open is None:
            self._open = self._start()
        self._lib.vkCmdPipelineBarrier(
            self._open, self._work, self._work, 0, 1, self._between, 0, self._ffi.NULL, 0,
            self._ffi.NULL,
        )  # fmt: skip
        return self._open

    def recorded_launch(self) -> None:
        """A launch was recorded; enough of them are submitted."""
        self.launched = True
        self._recorded += 1
        if self._recorded >= BATCH:
            self.submit()

    def submit(self) -> None:
        """Hand what was recorded to the device, without waiting for it."""
        if self._open is None:
            return
        nothing = self._ffi.NULL
        self._lib.vkCmdPipelineBarrier(
            self._open, self._work, self._host, 0, 1, self._to_host, 0, nothing, 0, nothing
        )
        slot = self.current % SLOTS
        fence, lib = self._fences[slot], self._lib
        self._check("end a batch", lib.vkEndCommandBuffer(self._open))
        self._check("end a batch", lib.vkResetFences(self._gpu.device, 1, fence))
        self._open, self._recorded = None, 0
        submitted = lib.vkQueueSubmit(self._gpu.queue, 1, self._submits[slot], fence[0])
        self._check("take a batch of kernels", submitted)
        self.current += 1

    def wait(self) -> None:
        """Submit, and return when all is done; the host may then read what was written."""
        self.submit()
        self._wait_for(self.current - 1)
        self.launched = False

    def abandon(self) -> None:
        """Return when the device is idle, whatever was interrupted; nobody wants the results."""
        self._lib.vkDeviceWaitIdle(self._gpu.device)

    def _start(self) -> Any:
        self._wait_for(self.current - SLOTS)  # who had this slot
        slot = self.current % SLOTS
        buffer = self._buffers[slot]
        self._check("start a batch", self._lib.vkBeginCommandBuffer(buffer, self._begin))
        return buffer

    def _wait_for(self, submission: int) -> None:
        for number in range(self.done + 1, submission + 1):
            fence = self._fences[number % SLOTS]
            waited = self._lib.vkWaitForFences(self._gpu.device, 1, fence, 1, FOREVER)
            self._check("run a batch of kernels", waited)
            self.done = number

    def _fence(self) -> Any:
        vk = self._gpu.vk
        fence = self._ffi.new("VkFence*")
        info = vk.VkFenceCreateInfo()
        fence[0] = vk.vkCreateFence(self._gpu.device, info, None)
        return fence

    def _submission(self, holder: Any) -> Any:
        info = self._ffi.new("VkSubmitInfo*")
        info.sType = self._gpu.vk.VK_STRUCTURE_TYPE_SUBMIT_INFO
        info.commandBufferCount = 1
        info.pCommandBuffers = holder
        return info

    def _barrier(self, access: int) -> Any:
        barrier = self._ffi.new("VkMemoryBarrier*")
        barrier.sType = self._gpu.vk.VK_STRUCTURE_TYPE_MEMORY_BARRIER
        barrier.srcAccessMask = self._gpu.vk.VK_ACCESS_MEMORY_WRITE_BIT
        barrier.dstAccessMask = access
        return barrier

    def _check(self, what: str, result: int) -> None:
        if result != 0:
            raise refused(what, self._gpu.vk.exception_codes[result].__name__)
