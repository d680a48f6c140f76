"""Whether scheduled kernels stay within what their device lets one do.

Families size themselves by `target.Device`, but a shape can be too much for any size; what a
device refuses would else come out when the library is loaded, or as wrong numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tvm import IRModule, s_tir, tirx
from tvm.ir.transform import Sequential

from mlc_compile.errors import TargetError
from mlc_compile.target import Device, Target

EXTENT: Final = "thread_extent"  # the attribute by which a kernel binds an index
BLOCK: Final = "blockIdx.x"
THREAD: Final = "threadIdx."
SHARED: Final = "shared"
PLACING: Final = Sequential(  # of TVM's own lowering, and in its order
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)
HINT: Final = "the model's shapes are too large for this target's kernels: choose another target"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one launch asks for: blocks along x, threads of a block, bytes that they share.

    `arguments` are the buffers that it reads or writes: of those of its function the others are
    not bound to it.
    """

    blocks: int
    threads: int
    shared_bytes: int
    arguments: tuple[Any, ...] = ()


def require_limits(mod: IRModule, target: Target) -> None:
    """TargetError names the first kernel that is over a limit of the target's device."""
    if target.device is None:
        return
    for gv, func in sorted(mod.functions.items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(func, tirx.PrimFunc):
            for what, asked, most in _excesses(func, target.device):
                raise TargetError(
                    f"target {target.name}: kernel {gv.name_hint} takes {asked:,} {what}, "
                    f"the device allows {most:,}",
                    hint=HINT,
                )


def launches_of(func: tirx.PrimFunc) -> list[Taken]:
    """What each launch of a kernel asks for, in order; sizes that are symbolic are not counted."""
    return [_taken(launch) for launch in _launches(_placed(func).body)]


def _placed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel as TVM's schedules write it, each buffer allocated in the launch that uses it alone.

    They allocate all at the start of the function, as if no two blocks of threads had their own.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    return PLACING(IRModule({"main": func}))["main"]


def _excesses(func: tirx.PrimFunc, device: Device) -> Iterator[tuple[str, int, int]]:
    """(what, asked, allowed) of all that is over a limit."""
    for taken in launches_of(func):
        yield from _over("blocks along x", taken.blocks, device.grid)
        yield from _over("threads a block", taken.threads, device.threads)
        yield from _over("bytes of shared memory", taken.shared_bytes, device.shared_bytes)
        yield from _over("buffers", len(taken.arguments), device.buffers)
        for param in taken.arguments:
            what = f"bytes in argument {param.name}"
            yield from _over(what, _nbytes(param), device.binding_bytes)


def _over(what: str, asked: int, most: int | None) -> Iterator[tuple[str, int, int]]:
    if most is not None and asked > most:
        yield what, asked, most


def _children(stmt: Any) -> Iterator[Any]:
    """The statements directly inside one."""
    for field in ("body", "block", "then_case", "else_case"):
        inner = getattr(stmt, field, None)
        if inner is not None:
            yield inner
    yield from getattr(stmt, "seq", ())


def _all(stmt: Any) -> Iterator[Any]:
    yield stmt
    for child in _children(stmt):
        yield from _all(child)


def _launches(stmt: Any) -> Iterator[Any]:
    """The outermost statements that bind an index of blocks or threads."""
    if _binding(stmt) is not None:
        yield stmt
        return
    for child in _children(stmt):
        yield from _launches(child)


def _taken(launch: Any) -> Taken:
    extents: dict[str, int] = {}
    shared = 0
    for stmt in _all(launch):
        tag, extent = _binding(stmt) or ("", 1)
        extents[tag] = max(extents.get(tag, 1), extent)
        shared += sum(_nbytes(b) for b in _allocated(stmt) if str(b.scope()).startswith(SHARED))
    threads = math.prod(extent for tag, extent in extents.items() if tag.startswith(THREAD))
    used = tirx.analysis.undefined_vars(launch, [])
    buffers = tuple(var for var in used if tirx.is_buffer_var(var))
    return Taken(extents.get(BLOCK, 1), threads, shared, buffers)


def _binding(stmt: Any) -> tuple[str, int] | None:
    """The index that a statement binds and its extent, as kernels or TVM's schedules write it."""
    if isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == EXTENT:
        return str(stmt.node.thread_tag), _constant(stmt.value)
    if isinstance(stmt, tirx.For) and stmt.thread_binding is not None:
        return str(stmt.thread_binding.thread_tag), _constant(stmt.extent)
    return None


def _allocated(stmt: Any) -> Sequence[Any]:
    if isinstance(stmt, tirx.AllocBuffer):
        return (stmt.buffer,)
    return tuple(getattr(stmt, "alloc_buffers", None) or ())


def _nbytes(buffer: Any) -> int:
    """Bytes of a buffer whose shape is known, 0 of one whose shape is not."""
    if not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
        return 0
    dtype = np.dtype(str(buffer.dtype).replace("bool", "int8"))
    return math.prod(int(size) for size in buffer.shape) * dtype.itemsize


def _constant(extent: Any) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else 1
