"""A lowered kernel becomes a shader: read it, declare what it is called with, walk it, check."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tvm import tirx

from mlc_compile.target import Device

from . import interface
from .body import Body
from .expressions import evaluate
from .module import Module
from .refusal import beyond_row, refusal
from .shader import Shader
from .state import Kernel
from .statements import execute
from .usage import usage_of

DEPTH: Final = 10_000  # frames: a sum of a thousand terms is a few times as deep


def emit_kernel(func: tirx.PrimFunc, device: Device) -> Shader:
    """The shader of a lowered device PrimFunc, as `target.build.vulkan` receives it.

    Raises TargetError, which names kernel and node, if it has what these devices need not
    have, or what no rule here knows.
    """
    name = str(func.attrs["global_symbol"])
    with _deep_recursion(name):
        module = Module(name)
        k = Kernel(name, device, usage_of(func), module, Body(module), evaluate)
        uniform = interface.declare(k, func)
        execute(k, func.body)
    x, y, z = k.local_size
    _check_limits(k)
    return Shader(
        name=name,
        code=module.binary((x, y, z)),
        uniform_block=uniform,
        local_size=(x, y, z),
        shared_bytes=k.shared_bytes,
        capabilities=tuple(sorted(c.name for c in module.capabilities)),
    )


def _check_limits(k: Kernel) -> None:
    """What a row states in numbers."""
    threads, buffers = math.prod(k.local_size), sum(m.block for m in k.buffers.values())
    uses = (
        ("threads", threads, f"{threads} threads"),
        ("shared_bytes", k.shared_bytes, f"{k.shared_bytes} bytes of shared memory"),
        ("buffers", buffers, f"{buffers} buffers"),
    )
    for row_field, used, need in uses:
        has = getattr(k.device, row_field)
        if has is not None and used > has:
            raise beyond_row(k.name, "its launch", need, row_field, has)


@contextmanager
def _deep_recursion(name: str) -> Iterator[None]:
    """Expressions are walked by recursion, and unrolled sums are deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    except RecursionError as e:
        raise refusal(name, "an expression", "it nests too deep") from e
    finally:
        sys.setrecursionlimit(before)
