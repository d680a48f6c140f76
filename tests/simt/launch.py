"""Launch a kernel: its threads, in chunks of blocks, and the memory they see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from tvm import tirx

from .dtypes import type_of
from .errors import Unsupported
from .expressions import compile_expr
from .fragments import SCOPES as FRAGMENTS
from .fragments import make_fragments, warps_of
from .frame import Active, Clock, Frame
from .grid import Dim3, Grid, Launch, Threads, axis_values, threads_of
from .memory import FlatMemory, FlatView, LocalMemory, LocalView, View
from .plan import Axis, Buffer, Exec, Plan, Usage, key_of
from .races import RaceTracker

LANES: Final = 16384  # threads of a chunk: enough to hide Python's cost, few enough for caches
LOCAL_BYTES: Final = 1 << 26  # of a chunk

AXES: Final = {
    f"{kind}Idx.{name}": (kind, number)
    for kind in ("block", "thread")
    for number, name in enumerate("xyz")
}
SHARED: Final = ("shared", "shared.dyn")
LOCAL: Final = "local"


def compile_launch(
    node: tirx.AttrStmt, plan: Plan, compile_stmt: Callable[[object, Plan], Exec]
) -> Exec:
    """The outermost thread binding is a launch of everything in it; others are its axes."""
    if plan.usage is not plan.host:
        plan.usage.axes.append(_axis(node, plan))
        return compile_stmt(node.body, plan)
    plan.usage = usage = Usage(axes=[_axis(node, plan)])
    plan.kernels.append(usage)
    body = compile_stmt(node.body, plan)
    plan.usage = plan.host
    kernel = Kernel(plan, usage, body)
    return kernel.launch


def _axis(node: tirx.AttrStmt, plan: Plan) -> Axis:
    tag = str(node.node.thread_tag)
    if tag not in AXES:
        raise Unsupported(f"{plan.name}: thread binding {tag}")
    var = node.node.var
    kind, number = AXES[tag]
    return Axis(kind, number, key_of(var), type_of(var).dtype, compile_expr(node.value, plan))


@dataclass(frozen=True, slots=True)
class Kernel:
    """The code of one launch site."""

    plan: Plan
    usage: Usage
    body: Exec

    def launch(self, host: Frame) -> None:
        """Run all blocks."""
        grid = Grid(self.plan.name, self._extents(host, "block"), self._extents(host, "thread"))
        self.plan.launches.append(self._record(grid))
        trackers = self._trackers(host)
        chunk = self._blocks_at_once(grid)
        for first in range(0, grid.blocks, chunk):
            self._run(host, threads_of(grid, first, min(first + chunk, grid.blocks)), trackers)

    def _run(self, host: Frame, threads: Threads, trackers: Mapping[int, RaceTracker]) -> None:
        slots = int(threads.slot[-1]) + 1
        clock = Clock(slots, threads.grid.blocks)
        frame = Frame(Active(threads, clock), dict(host.values))
        for axis in self.usage.axes:
            numbers = threads.block if axis.kind == "block" else threads.thread
            numbers = numbers if axis.kind == "block" else numbers % threads.grid.threads
            extents = threads.grid.grid if axis.kind == "block" else threads.grid.block
            frame.values[axis.key] = axis_values(numbers, extents, axis.number).astype(axis.dtype)
        self._bind_memory(host, frame, slots, trackers)
        self.body(frame)

    def _bind_memory(
        self, host: Frame, frame: Frame, slots: int, trackers: Mapping[int, RaceTracker]
    ) -> None:
        """Give every buffer that the kernel can see its view."""
        made: dict[int, FlatMemory | LocalMemory] = {
            root: FlatMemory(data, self.plan.unit(root), 0, None, trackers.get(root))
            for root, data in self._global_data(host).items()
        }
        for buffer in self.usage.allocated:
            if buffer.scope in FRAGMENTS:
                warps = warps_of(frame.active.threads)
                frame.fragments[buffer.key] = make_fragments(buffer, warps)
            else:
                made[buffer.key] = self._allocate(buffer, slots, len(frame.active.threads))
        for buffer in self.plan.buffers.values():
            memory = made.get(buffer.root)
            if memory is not None:
                frame.views[buffer.key] = bind(buffer, memory)

    def _allocate(self, buffer: Buffer, slots: int, lanes: int) -> FlatMemory | LocalMemory:
        size, unit = _size(buffer), self.plan.unit(buffer.root)
        if buffer.scope == LOCAL:
            return LocalMemory(
                np.zeros((size, lanes), buffer.type.dtype),
                np.zeros((size, lanes), bool),
                bytearray(size),
            )
        if buffer.scope not in SHARED:
            raise Unsupported(f"{self.plan.name}: {buffer.name} has scope {buffer.scope}")
        stride = -(-size * buffer.type.dtype.itemsize // 16) * 16
        units = slots * stride // unit
        tracker = RaceTracker(units, between_blocks=False) if self.plan.races else None
        data = np.zeros(slots * stride, np.uint8)
        return FlatMemory(data, unit, stride, np.zeros(units, bool), tracker)

    def _trackers(self, host: Frame) -> Mapping[int, RaceTracker]:
        """One for each global buffer that the kernel writes."""
        if not self.plan.races:
            return {}
        written = self._roots(self.usage.written)
        return {
            root: RaceTracker(len(data) // self.plan.unit(root), between_blocks=True)
            for root, data in self._global_data(host).items()
            if root in written
        }

    def _global_data(self, host: Frame) -> Mapping[int, np.ndarray]:
        buffers = self.plan.buffers
        return {buffers[key].root: view.memory.data for key, view in host.views.items()}

    def _roots(self, roots: set[int]) -> set[int]:
        return roots - {b.key for b in self.usage.allocated}

    def _extents(self, host: Frame, kind: str) -> Dim3:
        extents = [1, 1, 1]
        for axis in self.usage.axes:
            if axis.kind == kind:
                # TVM's runtime makes a 1 of an extent that is 0: kernels must know of it.
                extents[axis.number] = int(axis.extent(host)[0]) or 1
        x, y, z = extents
        return x, y, z

    def _bytes(self, scopes: tuple[str, ...]) -> int:
        return sum(
            _size(b) * b.type.dtype.itemsize for b in self.usage.allocated if b.scope in scopes
        )

    def _record(self, grid: Grid) -> Launch:
        return Launch(
            name=grid.kernel,
            grid=grid.grid,
            block=grid.block,
            shared_bytes=self._bytes(SHARED),
            local_bytes=self._bytes((LOCAL,)),
            global_buffers=len(self._roots(self.usage.touched)),
        )

    def _blocks_at_once(self, grid: Grid) -> int:
        lanes = min(LANES, LOCAL_BYTES // max(1, self._bytes((LOCAL,))))
        return max(1, lanes // grid.threads)


def bind(buffer: Buffer, memory: FlatMemory | LocalMemory) -> View:
    """The view of one buffer; a size known only at run time is that of the memory."""
    dtype = buffer.type.dtype
    if isinstance(memory, LocalMemory):
        if memory.data.dtype.itemsize != dtype.itemsize:
            raise Unsupported(f"{buffer.name} shows local memory as elements of another width")
        size = len(memory.data) if buffer.size is None else buffer.size
        return LocalView(buffer.name, memory, dtype, size)
    whole = (memory.stride or len(memory.data)) // dtype.itemsize
    size = whole if buffer.size is None else min(whole, buffer.size)
    return FlatView(buffer.name, memory, dtype, size)


def _size(buffer: Buffer) -> int:
    if buffer.size is None:
        raise Unsupported(f"{buffer.name} in {buffer.scope} memory has no constant size")
    return buffer.size
