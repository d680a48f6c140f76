"""The parts in which long contexts are walked by decode attention, and their join.

Key heads are few and cores are many, so a context is walked in parts side by side, and a second
launch joins what they gave (Flash-Decoding, Dao et al. 2023). How many parts there are is known
on the host, by the pages that there are: a short context is one, and its block writes the
output itself.
"""

from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_pages import Pages
from mlc_compile.schedule.kernels.gpu.attention_teams import State, Teams
from mlc_compile.schedule.kernels.gpu.attention_tiling import MASKED
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.target import Device

LEAST: Final = 128  # tokens of a part: fewer are walked sooner than joined


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` parts of each sequence, and what they give for each query.

    A query has `most` rows side by side: an output of `d` floats each, then its lse.
    """

    a: Attention
    most: int
    count: Expr
    rows: Buffer | None  # None: there is never more than one part

    @classmethod
    def declare(cls, a: Attention, most: int, sequences: Expr, pages: Pages) -> "Parts":
        """At most `most`, on the host.

        So many that the longest sequence has enough of them: it may own all pages. All `most`
        rows are always there: TVM's pool would else free and allocate as a context grows.
        """
        if most == 1:
            return cls(a, most, v.int32(1), None)
        count = tirx.max(tirx.min(pages.owned * pages.size // LEAST, most), 1)
        rows = g.workspace((sequences * (a.h_q * most), a.d + g.VECTOR))
        return cls(a, most, T.bind(count), rows)

    def put(self, value: Expr, whole: Buffer, at: tuple[Index, ...], part: Expr) -> None:
        """To whole[at] if the context is one part, else to the row of the part.

        `at` is a sequence, a query's head and a column; without the last, it is an lse.
        """
        value = T.bind(value)
        if self.rows is None:
            g.store_as(value, whole, *at, lanes=1)
            return
        sequence, head, column = (*at, self.a.d)[:3]
        with T.If(self.count == 1):
            with T.Then():
                g.store_as(value, whole, *at, lanes=1)
            with T.Else():
                row = (sequence * self.a.h_q + head) * self.most + part
                v.put(value, self.rows, row, column)

    def join(self, o: Buffer, lse: Buffer, sequences: Expr, device: Device) -> None:
        """Write the outputs if there are several parts: a launch, a block a query."""
        if self.rows is not None:
            with T.If(self.count > 1), T.Then():
                self._launch(self.rows, o, lse, sequences, device)

    def _launch(
        self, rows: Buffer, o: Buffer, lse: Buffer, sequences: Expr, device: Device
    ) -> None:
        h_q, d = self.a.h_q, self.a.d
        teams = Teams.of(d, 1, device)
        with g.each_block(sequences * h_q, device, threads=teams.threads) as (block, thread):
            state, scratch = State.make(teams, thread), g.shared(teams.scratch)
            with T.serial(0, g.blocks_of(self.count, teams.count)) as i:
                part = T.bind(i * teams.count + state.team)
                row = T.bind(block * self.most + tirx.min(part, self.count - 1))
                score = T.bind(tirx.Select(part < self.count, rows[row, d], v.const(MASKED)))
                value = g.load_f32(rows, row, state.column * teams.lanes, lanes=teams.lanes)
                state.take(0, [score], [g.elements(value, teams.lanes)])
            at = block // h_q, block % h_q

            def write(_: int, column: Expr, value: Expr) -> None:
                g.store_as(value, o, *at, column, lanes=1)

            state.finish(scratch, write, lambda _, value: v.put(value, lse, *at))
