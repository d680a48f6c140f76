"""What the lowered function says before anything runs: buffers, what backs them, kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import tirx

from .dtypes import Type, parse
from .errors import Unsupported
from .frame import Frame
from .grid import Launch

Array = np.ndarray
Eval = Callable[[Frame], Array]
Exec = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer variable: the memory behind it (`root`), its element, its scope.

    `size` is the number of scalars if it is a constant.
    """

    key: int
    root: int
    name: str
    type: Type
    scope: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Axis:
    """A thread variable: coordinate `number` of its "block" or "thread", and the extent."""

    kind: str
    number: int
    key: int
    dtype: np.dtype
    extent: Eval


@dataclass(slots=True)
class Usage:
    """Thread axes of one kernel, and the roots that its code touches, writes and allocates."""

    axes: list[Axis] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    allocated: list[Buffer] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """Grows while the function is compiled; complete when it runs."""

    name: str
    races: bool
    buffers: dict[int, Buffer] = field(default_factory=dict)
    host: Usage = field(default_factory=Usage)
    usage: Usage = field(default_factory=Usage)
    kernels: list[Usage] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.usage = self.host

    def declare(self, var: tirx.Buffer, root: int | None = None) -> Buffer:
        """Enter a buffer variable that has its own memory, or that of `root`."""
        element = parse(str(var.ty.dtype.dtype))
        extents = [s.value for s in var.ty.shape if isinstance(s, tirx.IntImm)]
        constant = len(extents) == len(var.ty.shape)
        size = int(np.prod(extents)) * element.lanes if constant else None
        own = key_of(var)
        scope = str(var.ty.storage_scope)
        name = str(var.name) or f"unnamed {scope} buffer {len(self.buffers)} "
        buffer = Buffer(own, own if root is None else root, name, element, scope, size)
        self.buffers[own] = buffer
        return buffer

    def buffer(self, var: object) -> Buffer:
        """The buffer of a variable, or of a pointer to its data."""
        if isinstance(var, tvm.ir.Call) and var.op.name == "tirx.buffer_data":
            (var,) = var.args
        found = self.buffers.get(key_of(var))
        if found is None:
            raise Unsupported(f"{self.name}: {var} is not a buffer declared before")
        return found

    def unit(self, root: int) -> int:
        """Bytes of the smallest element that any buffer of this memory has."""
        return min(b.type.dtype.itemsize for b in self.buffers.values() if b.root == root)


def key_of(var: object) -> int:
    """Identity of a variable; printed names are not unique."""
    return int(var.__chandle__())
