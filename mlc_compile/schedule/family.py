"""A kernel with a space: one workload of a family, what may be chosen, and how it is called.

A rule answers with a `Family` where a tuning record may decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm import tirx

from mlc_compile.records import Workload
from mlc_compile.schedule.operand import Operand
from mlc_compile.schedule.space import Space

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Family(Generic[P]):
    """`build(point)` is the kernel at a point of `space`; `operands` are its parameters, in order.

    `derived` gives what a cost model should know of a point beyond its numbers.
    """

    workload: Workload
    space: Space[P]
    build: Callable[[P], tirx.PrimFunc]
    operands: tuple[Operand, ...]
    derived: Callable[[P], Mapping[str, float]] = lambda _: {}

    @property
    def version(self) -> int:
        """Of the space, with its default: a record of another one says nothing here."""
        return self.space.version
