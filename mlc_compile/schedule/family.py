"""A kernel with a space: one workload of a family, what may be chosen, and how it is called.

A rule answers with a `Family` where a tuning record may decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm import tirx

from mlc_compile.artifact import Activations
from mlc_compile.records import Workload
from mlc_compile.schedule.operand import Operand
from mlc_compile.schedule.space import Space
from mlc_compile.schedule.traces import TraceSpace

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Family(Generic[P]):
    """`build(point)` is the kernel at a point of `space`; `operands` are its parameters, in order.

    `derived` gives what a cost model should know of a point beyond its numbers; `operations`
    counts those of a call for so many tokens after so many in the cache, a multiply-add as two,
    and `arithmetic` says what most are done in.
    """

    workload: Workload
    space: Space[P] | TraceSpace
    build: Callable[[P], tirx.PrimFunc]
    operands: tuple[Operand, ...]
    derived: Callable[[P], Mapping[str, float]] = lambda _: {}
    operations: Callable[[int, int], int] = lambda _tokens, _before: 0
    arithmetic: Activations = "float32"

    @property
    def version(self) -> int:
        """Of the space, with its default: a record of another one says nothing here."""
        return self.space.version
