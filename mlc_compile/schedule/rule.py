"""What a rule answers: the kernel for one operator call, and how to call it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc_compile.target import Target

Call = Any  # relax.Call; TVM is untyped


@dataclass(frozen=True, slots=True)
class Kernel:
    """A PrimFunc and its arguments.

    `inplace[i]` is the argument that result i overwrites, -1 if it is fresh.
    """

    name: str
    func: Any  # tirx.PrimFunc
    args: Sequence[Any]
    results: Sequence[Any]  # relax.TensorType of each result
    inplace: tuple[int, ...] = ()


Rule = Callable[[Call, Target], Kernel | None]
