"""Bind numpy arguments to a PrimFunc's parameters and interpret it."""

import itertools

import numpy as np
import tvm
from tvm import tirx

from .dtypes import parse
from .errors import Unsupported
from .expressions import compile_expr
from .frame import Active, Clock, Frame
from .grid import Grid, Launches, threads_of
from .launch import bind
from .lowering import lower
from .memory import FlatMemory
from .plan import Plan, key_of
from .statements import compile_stmt

Argument = np.ndarray | int | float


def run(
    func: tirx.PrimFunc,
    *args: Argument,
    target: tvm.target.Target | None = None,
    races: bool = True,
) -> Launches:
    """Execute `func` in place on contiguous arrays; its launches in order.

    Symbolic dimensions take their values from the shapes. `races=False` skips the search for
    data races, which about halves the time. Raises a `SimtError` at the first fault.
    """
    return execute(lower(func, target), *args, races=races)


def execute(lowered: tirx.PrimFunc, *args: Argument, races: bool = True) -> Launches:
    """`run` for a PrimFunc that has been lowered."""
    plan = Plan(_name(lowered), races)
    host = _host_frame(plan.name)
    if len(args) != len(lowered.params):
        raise Unsupported(f"{plan.name}: {len(lowered.params)} arguments, got {len(args)}")
    for param, arg in zip(lowered.params, args, strict=True):
        _bind_argument(param, arg, plan, host)
    _check_shapes(lowered.params, args, plan, host)
    body = compile_stmt(lowered.body, plan)
    _check_overlap(lowered.params, args, plan)
    with np.errstate(all="ignore"):
        body(host)
    return tuple(plan.launches)


def _name(func: tirx.PrimFunc) -> str:
    return str(func.attrs["global_symbol"]) if "global_symbol" in func.attrs else "main"


def _host_frame(name: str) -> Frame:
    """The host is one thread."""
    return Frame(Active(threads_of(Grid(name, (1, 1, 1), (1, 1, 1)), 0, 1), Clock(1, 1)))


def _bind_argument(param: tirx.Var, arg: Argument, plan: Plan, host: Frame) -> None:
    if not tirx.is_buffer_var(param):
        host.values[key_of(param)] = np.array([arg]).astype(parse(str(param.ty.dtype)).dtype)
        return
    buffer = plan.declare(param)
    if not isinstance(arg, np.ndarray) or arg.dtype != buffer.type.dtype:
        raise Unsupported(f"{plan.name}: {buffer.name} must be a {buffer.type.dtype} array")
    if not arg.flags.c_contiguous or arg.ndim != len(param.ty.shape):
        raise Unsupported(f"{plan.name}: {buffer.name} must be contiguous, {param.ty.shape}")
    for extent, size in zip(param.ty.shape, arg.shape, strict=True):
        if isinstance(extent, tirx.Var):
            value = np.array([size]).astype(parse(str(extent.ty.dtype)).dtype)
            host.values.setdefault(key_of(extent), value)
    offset = param.ty.elem_offset
    if isinstance(offset, tirx.Var):
        host.values[key_of(offset)] = np.zeros(1, parse(str(offset.ty.dtype)).dtype)
    memory = FlatMemory(arg.reshape(-1).view(np.uint8), arg.dtype.itemsize, 0, None, None)
    host.views[buffer.key] = bind(buffer, memory)


def _check_overlap(params: list[tirx.Var], args: tuple[Argument, ...], plan: Plan) -> None:
    """Races through memory that two arguments share would go unseen."""
    written = plan.host.written.union(*(u.written for u in plan.kernels))
    arrays = [
        (key_of(p), a) for p, a in zip(params, args, strict=True) if isinstance(a, np.ndarray)
    ]
    for (key, one), (other_key, other) in itertools.combinations(arrays, 2):
        if {key, other_key} & written and np.may_share_memory(one, other):
            raise Unsupported(f"{plan.name}: a written argument shares memory with another")


def _check_shapes(
    params: list[tirx.Var], args: tuple[Argument, ...], plan: Plan, host: Frame
) -> None:
    for param, arg in zip(params, args, strict=True):
        if not isinstance(arg, np.ndarray):
            continue
        wanted = tuple(int(compile_expr(e, plan)(host)[0]) for e in param.ty.shape)
        if wanted != arg.shape:
            raise Unsupported(
                f"{plan.name}: {param.name} must have shape {wanted}, got {arg.shape}"
            )
