"""What a block of prefill attention does for its tile of rows: its state and its steps.

Queries stay in shared memory; keys, then values, take turns in another part of it. A thread
computes some scores, softens a part of a row, and holds a part of the output.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.attention_rows import KEY, VALUE, Rows
from mlc_compile.schedule.kernels.gpu.attention_tiling import MASKED, Tiling
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index


@dataclass(frozen=True, slots=True)
class State:
    """What the block shares, and what a thread holds of the rows that it softens and adds up.

    `kv` and `scores` have one dimension: of two, TVM would cut off the padding.
    """

    q: Buffer
    kv: Buffer
    scores: Buffer
    held: Buffer  # scores, while they become weights
    factors: Buffer  # by which a row's output shrinks
    parts: Buffer  # of a row's maximum, later of its mass
    top: Buffer
    mass: Buffer
    out: Buffer

    @classmethod
    def make(cls, t: Tiling) -> "State":
        held = _per_thread(t.rows, t.out_rows) * (t.d // t.out_columns)
        state = cls(
            q=g.shared(t.rows, t.d, dtype=t.dtype),
            kv=g.shared(t.keys * t.stride, dtype=t.dtype),
            scores=g.shared(t.rows * (t.keys + 1)),
            held=g.registers(t.keys // t.shares),
            factors=g.shared(t.rows),
            parts=g.shared(t.rows, t.shares),
            top=g.registers(1),
            mass=g.registers(1),
            out=g.registers(held),
        )
        v.put(v.const(MASKED), state.top, 0)
        v.put(v.const(0.0), state.mass, 0)
        for i in range(held):
            v.put(v.const(0.0), state.out, i)
        return state


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks of as many rows as the device takes, for heads and elements of any kind."""

    t: Tiling

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.t.rows

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.t.threads

    def attend(
        self, rows: Rows, thread: Expr, q: Buffer, o: Buffer, lse: Buffer, scale: Expr
    ) -> None:
        """As `Method.attend`."""
        task, state = Task(self.t, rows, thread), State.make(self.t)
        task.load_queries(q, state)
        seen = T.bind(rows.seen)
        with T.serial(0, g.blocks_of(seen, self.t.keys)) as i:
            task.fold(state, T.bind(i * self.t.keys), scale)
        task.finish(state, o, lse)


@dataclass(frozen=True, slots=True)
class Task:
    """What one thread does for one tile of rows."""

    t: Tiling
    rows: Rows
    thread: Expr

    def load_queries(self, q: Buffer, state: State) -> None:
        """All rows of the tile into shared memory."""
        t = self.t
        with g.each_vector(t.rows * t.d, self.thread, t.threads, t.lanes) as i:
            row, column = i // t.d, i % t.d
            vector = T.bind(v.load(q, *self.rows.at(row), column, lanes=t.lanes))
            v.store(vector, state.q, row, column, lanes=t.lanes)

    def _load(self, side: int, state: State, base: Expr) -> None:
        """A tile of keys or values; past the end the last one again, which no row sees."""
        t = self.t
        with g.each_vector(t.keys * t.d, self.thread, t.threads, t.lanes) as i:
            row, column = i // t.d, i % t.d
            source, at = self.rows.key(side, base + tirx.Cast("int32", row), column)
            vector = T.bind(v.load(source, *at, lanes=t.lanes))
            v.store(vector, state.kv, row * t.stride + column, lanes=t.lanes)

    def fold(self, state: State, base: Expr, scale: Expr) -> None:
        """Take a tile of keys into the state."""
        g.barrier()  # before: others still add up the last values
        self._load(KEY, state, base)
        g.barrier()
        self._score(state, base, scale)
        g.barrier()
        self._load(VALUE, state, base)
        self._soften(state)
        g.barrier()
        self._add_up(state)

    def _score(self, state: State, base: Expr, scale: Expr) -> None:
        """scores = q k^T: a thread computes some rows and columns, as far apart as others do."""
        t = self.t
        y, x = self.thread // t.score_columns, self.thread % t.score_columns
        rows = [y + i * t.score_rows for i in range(_per_thread(t.rows, t.score_rows))]
        columns = [x + j * t.score_columns for j in range(t.keys // t.score_columns)]
        sums = g.registers(len(rows) * len(columns))
        for i in range(len(rows) * len(columns)):
            v.put(v.const(0.0), sums, i)
        with _guarded(t.rows >= t.score_rows, y < t.rows), T.serial(0, t.d // t.lanes) as k:
            at = k * t.lanes
            qs = [g.load_f32(state.q, row, at, lanes=t.lanes) for row in rows]
            ks = [g.load_f32(state.kv, x * t.stride + at, lanes=t.lanes) for x in columns]
            for i, query in enumerate(qs):
                for j, key in enumerate(ks):
                    terms = zip(g.elements(query, t.lanes), g.elements(key, t.lanes), strict=True)
                    n = i * len(columns) + j
                    for left, right in terms:
                        v.put(sums[n] + left * right, sums, n)
        with _guarded(t.rows >= t.score_rows, y < t.rows):
            for i, row in enumerate(rows):
                limit = T.bind(self.rows.limit(row))
                for j, column in enumerate(columns):
                    score = sums[i * len(columns) + j] * scale
                    visible = base + tirx.Cast("int32", column) < limit
                    masked = tirx.Select(visible, score, v.const(MASKED))
                    v.put(masked, state.scores, row * (t.keys + 1) + column)

    def _soften(self, state: State) -> None:
        """Turn scores into weights; the threads of a row find its maximum together."""
        t = self.t
        row, share = self.thread // t.shares, self.thread % t.shares
        start = row * (t.keys + 1) + share
        mine = [start + j * t.shares for j in range(t.keys // t.shares)]
        with _guarded(t.threads == t.rows * t.shares, row < t.rows):
            for j, at in enumerate(mine):
                v.put(state.scores[at], state.held, j)
            peak = reduce(tirx.max, [state.held[j] for j in range(len(mine))])
            v.put(peak, state.parts, row, share)
        g.barrier()
        with _guarded(t.threads == t.rows * t.shares, row < t.rows):
            peaks = [state.parts[row, i] for i in range(t.shares)]
            top = T.bind(reduce(tirx.max, [state.top[0], *peaks]))
            factor = T.bind(tirx.exp2(state.top[0] - top))
            v.put(state.mass[0] * factor, state.mass, 0)
            for j, at in enumerate(mine):
                score = state.held[j]
                real = score > v.const(MASKED / 2)
                weight = T.bind(tirx.Select(real, tirx.exp2(score - top), v.const(0.0)))
                v.put(state.mass[0] + weight, state.mass, 0)
                v.put(weight, state.scores, at)
            v.put(top, state.top, 0)
            with T.If(share == 0), T.Then():
                v.put(factor, state.factors, row)

    def _outs(self) -> Iterator[tuple[int, Expr, list[Expr]]]:
        """(number, row, columns where vectors begin) of the outputs that the thread holds."""
        t = self.t
        y, x = self.thread // t.out_columns, self.thread % t.out_columns
        vectors = t.d // t.lanes // t.out_columns
        columns = [(x + j * t.out_columns) * t.lanes for j in range(vectors)]
        for i in range(_per_thread(t.rows, t.out_rows)):
            yield i, y + i * t.out_rows, columns

    def _holds(self) -> tuple[bool, Expr]:
        """Whether all threads hold outputs, and whether this one does."""
        t = self.t
        return t.rows >= t.out_rows, self.thread // t.out_columns < t.rows

    def _add_up(self, state: State) -> None:
        """out = out · factor + weights · values."""
        t, outs = self.t, list(self._outs())
        width = len(outs[0][2]) * t.lanes
        with _guarded(*self._holds()):
            for i, row, _ in outs:
                factor = T.bind(state.factors[row])
                for n in range(i * width, (i + 1) * width):
                    v.put(state.out[n] * factor, state.out, n)
            with T.serial(0, t.keys) as key:
                weights = [T.bind(state.scores[row * (t.keys + 1) + key]) for _, row, _ in outs]
                starts = [key * t.stride + column for column in outs[0][2]]
                vectors = [g.load_f32(state.kv, at, lanes=t.lanes) for at in starts]
                values = [x for vector in vectors for x in g.elements(vector, t.lanes)]
                for i, weight in enumerate(weights):
                    for n, value in enumerate(values, i * width):
                        v.put(state.out[n] + weight * value, state.out, n)

    def finish(self, state: State, o: Buffer, lse: Buffer) -> None:
        """Add up what each thread of a row weighed, divide by it, and write."""
        t = self.t
        row, share = self.thread // t.shares, self.thread % t.shares
        with _guarded(t.threads == t.rows * t.shares, row < t.rows):
            v.put(state.mass[0], state.parts, row, share)
        g.barrier()
        with T.If(tirx.all(share == 0, row < t.rows, self.rows.is_real(row))), T.Then():
            mass = self._mass(state, row)
            v.put(state.top[0] + tirx.log2(mass), lse, *self.rows.at(row))
        for i, out_row, columns in self._outs():
            with T.If(tirx.all(out_row < t.rows, self.rows.is_real(out_row))), T.Then():
                inverse = T.bind(v.const(1.0) / self._mass(state, out_row))
                for j, column in enumerate(columns):
                    n = (i * len(columns) + j) * t.lanes
                    vector = v.load(state.out, n, lanes=t.lanes) * v.splat(inverse, t.lanes)
                    g.store_as(vector, o, *self.rows.at(out_row), column, lanes=t.lanes)

    def _mass(self, state: State, row: Index) -> Expr:
        """The sum of a row's weights, or 1 if it saw no key: its output is 0 then."""
        parts = [state.parts[row, i] for i in range(self.t.shares)]
        mass = T.bind(reduce(add, parts))
        return T.bind(tirx.Select(mass > v.const(0.0), mass, v.const(1.0)))


@contextmanager
def _guarded(always: bool, condition: Expr) -> Iterator[None]:
    """Under `condition`, unless it holds always."""
    if always:
        yield
        return
    with T.If(condition), T.Then():
        yield


def _per_thread(extent: int, threads: int) -> int:
    return max(1, extent // threads)
