"""What a rule answers: the kernel for one operator call, and how to call it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.schedule.family import Family
from mlc_compile.target import Target


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function and its arguments; of a family the record, or else its default, says which.

    `inplace[i]` is the argument that result i overwrites, -1 if it is fresh.
    """

    name: str
    func: tirx.PrimFunc | Family[Any]
    args: Sequence[relax.Expr]
    results: Sequence[relax.TensorType]
    inplace: tuple[int, ...] = ()


Rule = Callable[[relax.Call, Target], Kernel | None]


def plain(name: str, func: tirx.PrimFunc | Family[Any], call: relax.Call) -> Kernel:
    """The kernel that takes the call's own arguments and gives its one result."""
    return Kernel(name, func, list(call.args), [call.ty])


def rows_of(x: relax.Expr) -> int | None:
    """m of a tensor [1, m, ..]: 1 when decoding, None when it is known only at run time."""
    return 1 if ops.is_one_row(x) else None
