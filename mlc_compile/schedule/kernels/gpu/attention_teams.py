"""A running softmax that teams of a block's threads keep for some queries, and join at the end.

A team has a thread for every `lanes` columns of an output. It takes scores and the values that
they weigh (FlashAttention, Dao et al. 2022, algorithm 1), in powers of two, whatever the others
take; the block's output is that of all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_tiling import MASKED
from mlc_compile.schedule.kernels.vector import Buffer, Expr
from mlc_compile.target import Device

THREADS: Final = 256  # of a block, at most

Write = Callable[[int, Expr, Expr], None]  # (query, column, a value of its output)
WriteMass = Callable[[int, Expr], None]  # (query, log2 of the sum of 2**score)


@dataclass(frozen=True, slots=True)
class Teams:
    """The threads of a block: `count` teams, each for all `heads` queries of `d` columns."""

    d: int
    heads: int
    lanes: int
    count: int

    @classmethod
    def of(cls, d: int, heads: int, device: Device) -> "Teams":
        """As many as a block's threads are."""
        lanes = g.lanes_for(d)
        return cls(d, heads, lanes, max(1, min(THREADS, device.threads) // (d // lanes)))

    @property
    def columns(self) -> int:
        """Threads of a team."""
        return self.d // self.lanes

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.count * self.columns

    @property
    def scratch(self) -> int:
        """Floats that joining needs: the outputs of all teams for one query."""
        return self.count * self.d

    @property
    def shared_bytes(self) -> int:
        """What joining takes beside `scratch`."""
        return 4 * 2 * self.count * self.heads


@dataclass(frozen=True, slots=True)
class State:
    """What a thread has taken so far, and the memory in which its block joins."""

    teams: Teams
    thread: Expr
    top: Buffer  # the largest score of each query
    mass: Buffer  # the sum of weights of each query
    out: Buffer  # `lanes` columns of each output, unnormalized
    tops: Buffer
    masses: Buffer

    @classmethod
    def make(cls, teams: Teams, thread: Expr) -> "State":
        """Nothing is taken."""
        shared = teams.count * teams.heads
        state = cls(
            teams=teams,
            thread=thread,
            top=g.registers(teams.heads),
            mass=g.registers(teams.heads),
            out=g.registers(teams.heads * teams.lanes),
            tops=g.shared(shared),
            masses=g.shared(shared),
        )
        for h in range(teams.heads):
            v.put(v.const(MASKED), state.top, h)
            v.put(v.const(0.0), state.mass, h)
        for i in range(teams.heads * teams.lanes):
            v.put(v.const(0.0), state.out, i)
        return state

    @property
    def team(self) -> Expr:
        """Which one the thread belongs to."""
        return self.thread // self.teams.columns

    @property
    def column(self) -> Expr:
        """Which thread of its team it is."""
        return self.thread % self.teams.columns

    def take(self, h: int, scores: Sequence[Expr], values: Sequence[Sequence[Expr]]) -> None:
        """Weigh values, `lanes` columns of each, by their scores with query h."""
        top = T.bind(reduce(tirx.max, [self.top[h], *scores]))
        factor = T.bind(tirx.exp2(self.top[h] - top))
        weights = [T.bind(tirx.exp2(score - top)) for score in scores]
        v.put(top, self.top, h)
        v.put(self.mass[h] * factor + reduce(add, weights), self.mass, h)
        for lane in range(self.teams.lanes):
            fresh = reduce(add, [w * x[lane] for w, x in zip(weights, values, strict=True)])
            i = h * self.teams.lanes + lane
            v.put(self.out[i] * factor + fresh, self.out, i)

    def finish(self, scratch: Buffer, write: Write, write_mass: WriteMass) -> None:
        """Join the teams, a query after another; `scratch` is shared memory."""
        heads, teams = self.teams.heads, range(self.teams.count)
        g.barrier()  # TVM may give `tops` memory that is dead by now, but just was read
        with T.If(self.column == 0), T.Then():
            for h in range(heads):
                v.put(self.top[h], self.tops, self.team * heads + h)
                v.put(self.mass[h], self.masses, self.team * heads + h)
        g.barrier()
        for h in range(heads):
            tops = [T.bind(self.tops[i * heads + h]) for i in teams]
            top = T.bind(reduce(tirx.max, tops))
            masses = [self.masses[i * heads + h] for i in teams]
            shares = [x * tirx.exp2(y - top) for x, y in zip(masses, tops, strict=True)]
            mass = T.bind(reduce(add, shares))
            self._join(h, top, mass, scratch, write)
            with T.If(self.thread == 0), T.Then():
                write_mass(h, top + tirx.log2(_positive(mass)))

    def _join(self, h: int, top: Expr, mass: Expr, scratch: Buffer, write: Write) -> None:
        """Write one query's output."""
        t = self.teams
        factor = T.bind(tirx.exp2(self.top[h] - top))
        for lane in range(t.lanes):
            at = self.team * t.d + self.column * t.lanes + lane
            v.put(self.out[h * t.lanes + lane] * factor, scratch, at)
        g.barrier()
        inverse = T.bind(v.const(1.0) / _positive(mass))
        with g.each_vector(t.d, self.thread, t.threads, 1) as i:
            total = reduce(add, [scratch[team * t.d + i] for team in range(t.count)])
            write(h, i, total * inverse)
        g.barrier()


def _positive(mass: Expr) -> Expr:
    """`mass`, or 1 where there was nothing at all: the output then is 0, and so is its weight."""
    return tirx.Select(mass > v.const(0.0), mass, v.const(1.0))
