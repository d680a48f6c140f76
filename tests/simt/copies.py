"""Asynchronous copies to shared memory: cp.async, its groups, and waiting for them.

What is copied is read when the copy begins, and written when its thread waits for it. Until then
nobody may touch the place: what was there is gone, and what is written there would be overwritten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import tvm

from .errors import Unsupported
from .fragments import DONE, Compile
from .frame import Active, Copies, Frame
from .memory import FlatView, check_even
from .plan import Array, Eval, Plan
from .pointers import compile_pointer

Call = tvm.ir.Call

PIECE_BYTES: Final = 16  # the only size here; both ends begin at a multiple of it


@dataclass(slots=True)
class Copy:
    """One that threads began together: each its own piece, in its own group."""

    view: FlatView
    index: Array  # [elements, threads]
    value: Array
    waiting: Array  # bool [threads]
    group: Array  # [threads]


def _begin(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    to, source, size = list(node.args)[:3]
    if size.value != PIECE_BYTES:
        raise Unsupported(f"{plan.name}: asynchronous copy of {size} bytes")
    (to,) = to.args  # TVM converts the address to one of shared memory
    ends = [compile_pointer(p, plan, compile_expr) for p in (to, source)]
    plan.usage.written.add(ends[0].root)

    def run(frame: Frame) -> Array:
        active, indices, views = frame.active, [], [frame.views[end.key] for end in ends]
        for view, end in zip(views, ends, strict=True):
            first = end.offset(frame)
            check_even(frame.active, view, first, PIECE_BYTES, "copies")
            indices.append(first + np.arange(PIECE_BYTES // view.array.itemsize)[:, None])
        value = views[1].load(active, indices[1])
        views[0].expect(active, indices[0])
        threads = len(active.threads)
        waiting = np.ones(threads, bool) if active.mask is None else active.mask.copy()
        index = np.broadcast_to(indices[0], (len(indices[0]), threads))
        pending = _pending(frame)
        pending.copies.append(Copy(views[0], index, value, waiting, pending.groups.copy()))
        return DONE

    return run


def _end_group(_node: Call, _plan: Plan, _compile_expr: Compile) -> Eval:
    return _commit


def _wait_for_groups(node: Call, _plan: Plan, _compile_expr: Compile) -> Eval:
    left = int(node.args[0].value)
    return lambda frame: _wait(frame, left)


def _commit(frame: Frame) -> Array:
    mask = frame.active.mask
    _pending(frame).groups[... if mask is None else mask] += 1
    return DONE


def _wait(frame: Frame, left: int) -> Array:
    """All groups of the active threads but the last `left` have arrived."""
    active, pending = frame.active, _pending(frame)
    here = np.ones(len(active.threads), bool) if active.mask is None else active.mask
    for copy in pending.copies:
        done = here & copy.waiting & (copy.group < pending.groups - left)
        if done.any():
            copy.view.arrive(Active(active.threads, active.clock, done), copy.index, copy.value)
            copy.waiting &= ~done
    pending.copies[:] = [c for c in pending.copies if c.waiting.any()]
    return DONE


def _pending(frame: Frame) -> Copies:
    if frame.copies is None:
        frame.copies = Copies(np.zeros(len(frame.active.threads), np.int64))
    return frame.copies


CALLS: Final[Mapping[str, Callable[[Call, Plan, Compile], Eval]]] = {
    "ptx.cp_async_cg": _begin,
    "ptx.cp_async_commit_group": _end_group,
    "ptx.cp_async_wait_group": _wait_for_groups,
}
