"""What a rule answers: the kernel for one operator call, and how to call it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Kernel:
    """A PrimFunc and its arguments.

    `inplace[i]` is the argument that result i overwrites, -1 if it is fresh.
    """

    name: str
    func: tirx.PrimFunc
    args: Sequence[relax.Expr]
    results: Sequence[relax.TensorType]
    inplace: tuple[int, ...] = ()


Rule = Callable[[relax.Call, Target], Kernel | None]
