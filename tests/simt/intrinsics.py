"""Calls that need more than their arguments' values: lazy branches, barriers, other threads."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import tvm

from . import copies, mma, simdgroup, wmma
from .dtypes import constant, reinterpret, type_of
from .errors import DivergentBarrier, DivergentShuffle, Unsupported
from .frame import Frame
from .grid import WARP
from .memory import complain
from .plan import Array, Eval, Plan
from .pointers import compile_pointer

Compile = Callable[[object, Plan], Eval]
Call = tvm.ir.Call

NOTHING: Final = constant(0, np.dtype("int32"))


def where_active(frame: Frame, condition: Array, value: Eval, otherwise: Array) -> Array:
    """`value`, computed only where `condition` holds; `otherwise` if that is nowhere."""
    narrowed = frame.active.narrow(condition)
    if narrowed is None:
        return otherwise
    with frame.only(narrowed):
        return value(frame)


def _if_then_else(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    condition, yes, no = (compile_expr(a, plan) for a in node.args)
    dtype = type_of(node).dtype
    zero = constant(0, dtype)

    def run(frame: Frame) -> Array:
        chosen = condition(frame)
        if chosen.shape == (1,):
            return yes(frame) if chosen[0] else no(frame)
        taken = where_active(frame, chosen, yes, zero)
        return np.where(chosen, taken, where_active(frame, ~chosen, no, zero))

    return run


def _reinterpret(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    value, to = compile_expr(node.args[0], plan), type_of(node)
    return lambda frame: reinterpret(value(frame), to)


def _large_int(node: Call, _plan: Plan, _compile_expr: Compile) -> Eval:
    low, high = (a.value for a in node.args)
    value = np.array([(high << 32) + low], np.uint64).astype(type_of(node).dtype)
    return lambda _frame: value


def _barrier(node: Call, plan: Plan, _compile_expr: Compile) -> Eval:
    scope = node.args[0].value
    if scope not in BARRIER_SCOPES:
        raise Unsupported(f"{plan.name}: barrier of scope {scope}")

    def run(frame: Frame) -> Array:
        active = frame.active
        slots = active.threads.slot
        arrived = np.bincount(active.who.slot, minlength=slots[-1] + 1)
        partly = (arrived != 0) & (arrived != active.threads.grid.threads)
        if partly.any():
            lane = int(partly[active.who.slot].argmax())
            count = arrived[active.who.slot[lane]]
            what = f"waits at a barrier that {count} threads of its block reach"
            complain(DivergentBarrier, active, lane, what)
        active.clock.tick(np.flatnonzero(arrived))
        return NOTHING

    return run


BARRIER_SCOPES: Final = ("shared", "shared.dyn")


def _active_mask(_node: Call, _plan: Plan, _compile_expr: Compile) -> Eval:
    everyone = constant(0xFFFFFFFF, np.dtype("uint32"))
    return lambda _frame: everyone


def _down(lane: Array, width: Array, offset: Array) -> Array:
    return np.where(lane % width + offset < width, lane + offset, lane)


def _up(lane: Array, width: Array, offset: Array) -> Array:
    return np.where(lane % width >= offset, lane - offset, lane)


def _from(lane: Array, width: Array, source: Array) -> Array:
    return lane // width * width + source % width


def _xor(lane: Array, width: Array, bits: Array) -> Array:
    other = lane ^ bits
    return np.where(other // width == lane // width, other, lane)


def _shuffle(source_of: Callable[[Array, Array, Array], Array]) -> "Rule":
    """A warp shuffle; `source_of(lane, width, operand)` is the lane that each lane reads."""

    def make(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
        value, operand, width = (compile_expr(a, plan) for a in list(node.args)[1:4])

        def run(frame: Frame) -> Array:
            active = frame.active
            size = active.threads.grid.threads
            thread = active.threads.thread % size
            lane = thread % WARP
            source = source_of(lane, width(frame).astype(np.int64), operand(frame).astype(np.int64))
            source = np.where(thread - lane + source < size, source, lane)
            place = np.arange(len(thread)) - lane + source
            _check_takes_part(frame, place)
            given = value(frame)
            return np.broadcast_to(given, (*given.shape[:-1], len(thread)))[..., place]

        return run

    return make


def _check_takes_part(frame: Frame, place: Array) -> None:
    active = frame.active
    if active.mask is None:
        return
    absent = active.select(~active.mask[place])
    if absent.any():
        what = "shuffles with a thread that is not active"
        complain(DivergentShuffle, active, int(absent.argmax()), what)


def _atomic_add(node: Call, plan: Plan, compile_expr: Compile) -> Eval:
    pointer = compile_pointer(node.args[0], plan, compile_expr)
    plan.usage.written.add(pointer.root)
    value = compile_expr(node.args[1], plan)

    def run(frame: Frame) -> Array:
        view, offset = frame.views[pointer.key], pointer.offset(frame)
        view.atomic_add(frame.active, offset, value(frame))
        return NOTHING

    return run


Rule = Callable[[Call, Plan, Compile], Eval]

CALLS: Final[Mapping[str, Rule]] = {
    "if_then_else": _if_then_else,
    "reinterpret": _reinterpret,
    "large_uint_imm": _large_int,
    "tvm_storage_sync": _barrier,
    "tvm_warp_activemask": _active_mask,
    "tvm_warp_shuffle": _shuffle(_from),
    "tvm_warp_shuffle_up": _shuffle(_up),
    "tvm_warp_shuffle_down": _shuffle(_down),
    "tvm_warp_shuffle_xor": _shuffle(_xor),
    "cuda.atomic_add": _atomic_add,
    **wmma.CALLS,
    **simdgroup.CALLS,
    **mma.CALLS,
    **copies.CALLS,
}
