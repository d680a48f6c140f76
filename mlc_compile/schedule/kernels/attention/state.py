"""The running softmax of FlashAttention-2 (Dao 2023): divided by its sum at the very end.

A score is a logarithm to base 2, so that a weight is 2**(score - top): the queries have been
multiplied by `scale_of(d)`. A step of the maximum costs one multiplication of the output,
where that is loaded anyway.
"""

from dataclasses import dataclass
from math import e, log2, sqrt
from typing import Final

from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.bf16 import PAIRS, store_pairs
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index

MASKED: Final = -3.0e38  # a score of no weight, without an infinity to subtract


def scale_of(d: int) -> float:
    """What a query is multiplied by: 1 / sqrt(d), and the logarithm's base."""
    return log2(e) / sqrt(d)


@dataclass(frozen=True, slots=True)
class State:
    """Of `rows` queries: the largest score, the sum of weights in LANES parts, the weighted sum."""

    top: Buffer  # [rows]
    mass: Buffer  # [rows, LANES]
    out: Buffer  # [rows, d]

    @classmethod
    def make(cls, rows: int, d: int) -> "State":
        """In scratch memory."""
        return cls(
            top=v.workspace((rows,)),
            mass=v.workspace((rows, LANES)),
            out=v.workspace((rows, d)),
        )

    @property
    def d(self) -> int:
        """The head size."""
        return int(self.out.shape[1])

    def reset(self, row: Index) -> None:
        """To a row that has seen nothing."""
        lanes = v.lanes_for(self.d)
        v.put(v.const(MASKED), self.top, row)
        v.store(v.splat(0.0), self.mass, row, 0)
        with T.serial(0, self.d // lanes) as j:
            v.store(v.splat(0.0, lanes), self.out, row, j * lanes, lanes=lanes)

    def finish(self, row: Index, o: Buffer, at: tuple[Index, ...], start: Index) -> None:
        """Write a row of the output, normalized, to o[at, start..]."""
        lanes, inverse = v.lanes_for(self.d), self._inverse(row)
        with T.serial(0, self.d // lanes) as j:
            value = v.load(self.out, row, j * lanes, lanes=lanes)
            v.store(value * v.splat(inverse, lanes), o, *at, start + j * lanes, lanes=lanes)

    def finish_rounded(self, row: Index, o: Buffer, at: tuple[Index, ...], head: Index) -> None:
        """Write a row of the output, normalized and in pairs, as head number `head` of o[at]."""
        groups, inverse = self.d // GROUP, v.splat(self._inverse(row))
        first = head * groups * PAIRS
        store_pairs(lambda k: v.load(self.out, row, k) * inverse, groups, o, *at, first)

    def _inverse(self, row: Index) -> Expr:
        """Of the sum of weights."""
        return v.kept(v.const(1.0) / v.total(self.mass, row))

    def keep(self, row: Index, partial: "State", to: Index) -> None:
        """Copy a row to row `to` of `partial`."""
        lanes = v.lanes_for(self.d)
        v.put(self.top[row], partial.top, to)
        v.store(v.load(self.mass, row, 0), partial.mass, to, 0)
        with T.serial(0, self.d // lanes) as j:
            value = v.load(self.out, row, j * lanes, lanes=lanes)
            v.store(value, partial.out, to, j * lanes, lanes=lanes)
