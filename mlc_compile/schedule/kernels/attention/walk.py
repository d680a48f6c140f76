"""Some queries of key heads walk over their pages: scores, weights, weighted values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.attention.cache import Cache, Place
from mlc_compile.schedule.kernels.attention.state import MASKED, State
from mlc_compile.schedule.kernels.attention.tile import Tile
from mlc_compile.schedule.kernels.elementary import exp2
from mlc_compile.schedule.kernels.vector import LANES, Buffer, Expr, Index


@dataclass(frozen=True, slots=True)
class Walk:
    """A task's queries, and all that it knows of them so far.

    Members of a pass are neighbors among the rows of `q` and of the state, those of each of
    `tile.key_heads` key heads for themselves.
    """

    cache: Cache
    layer: Index
    head: Index  # the first of the key heads whose keys and values they are
    tile: Tile
    q: Buffer  # [key_heads · rows, d], times `scale_of(d)`
    state: State
    scores: Buffer  # [key_heads · members, tokens of a block]: of a pass; then weights
    factors: Buffer  # [key_heads · members]: what the pass multiplies by all that was before

    @classmethod
    def begin(cls, cache: Cache, layer: Index, head: Index, rows: int, tile: Tile) -> "Walk":
        """In scratch memory, for `rows` queries of each key head that are still to be written."""
        kv, heads = cache.kv, tile.key_heads
        return cls(
            cache=cache,
            layer=layer,
            head=head,
            tile=tile,
            q=v.workspace((heads * rows, kv.head_dim)),
            state=State.make(heads * rows, kv.head_dim),
            scores=v.workspace((heads * tile.members, tile.pages * kv.page)),
            factors=v.workspace((heads * tile.members,)),
        )

    def fold(self, row: Index, positions: Sequence[Expr], start: Expr, end: Expr) -> None:
        """Take a block of pages, from `start` to before `end` at most, into the state.

        The members' rows begin at `row` of each key head's; `positions` are those of their
        tokens, in order.
        """
        count = tirx.min(end - start, self.tile.pages)
        self._score(row, positions, start, count)
        for key in range(self.tile.key_heads):
            self._raise(key, row, count)
            self._soften(key, row, start, count)
        self._weigh(row, positions[-1], start, end)

    @property
    def _page(self) -> int:
        return self.cache.kv.page

    def _place(self, number: Index, key: int) -> Place:
        """Page `number` of the sequence, that of the task's key head `key`."""
        return self.cache.place(self.layer, number, self.head + key)

    def _row(self, key: int, row: Index) -> Index:
        """Of `q` and the state: a key head's row."""
        return key * (int(self.q.shape[0]) // self.tile.key_heads) + row

    def _score(self, row: Index, positions: Sequence[Expr], start: Expr, count: Expr) -> None:
        """scores = q . k, masked where a token is later than the member's."""
        chunks, members, heads = self.tile.chunks, self.tile.members, self.tile.key_heads
        with T.serial(0, count) as p, T.serial(0, self._page // (chunks * LANES)) as part:
            at = [self._place(start + p, key) for key in range(heads)]
            sums = self._products(row, at, part)
            places = [
                (g, c, sums[g * chunks + c]) for g in range(heads * members) for c in range(chunks)
            ]
            for g, c, held in places:
                scale = self.cache.key_scales(at[g // members], part * chunks + c)
                if scale is not None:
                    v.store(v.load(*held, 0) * scale, *held, 0)
            first = (start + p) * self._page + part * (chunks * LANES)  # token of the scores
            with T.If(first + (chunks * LANES - 1) > positions[0]), T.Then():
                for g, c, held in places:
                    position = v.splat_i32(positions[g % members])
                    visible = tirx.Ramp(first + c * LANES, 1, LANES) <= position
                    score = tirx.Select(visible, v.load(*held, 0), v.splat(MASKED))
                    v.store(score, *held, 0)
            for g, c, held in places:
                column = p * self._page + (part * chunks + c) * LANES
                v.store(v.load(*held, 0), self.scores, g, column)

    def _products(self, row: Index, at: list[Place], part: Index) -> v.Registers:
        """q . k of each member and of `chunks` vectors of the page's keys, those of `part`."""
        tile, d = self.tile, self.state.d
        each, steps = tile.key_heads * tile.members * tile.chunks, d // tile.chains
        sums = v.Registers.make(each * tile.chains)
        sums.clear()
        with T.serial(0, steps) as step:
            for chain, (key, place) in product(range(tile.chains), enumerate(at)):
                j, first = step * tile.chains + chain, chain * each + key * (each // tile.key_heads)
                held = [
                    self.cache.keys(place, j, part * tile.chunks + c) for c in range(tile.chunks)
                ]
                for g in range(tile.members):
                    component = v.splat(self.q[self._row(key, row) + g, j])
                    for c, vector in enumerate(held):
                        v.accumulate(*sums[first + g * tile.chunks + c], vector * component)
            if tile.ahead:
                shares = self._page // (tile.chunks * LANES) * steps
                for place in at:
                    self.cache.ask_values(place, part * steps + step, shares)
        for register, chain in product(range(each), range(1, tile.chains)):
            v.accumulate(*sums[register], v.load(*sums[chain * each + register], 0))
        return sums

    def _raise(self, key: int, row: Index, count: Expr) -> None:
        """Take the scores into the maxima; `factors` is what that makes of all before."""
        members, chunks, state = self.tile.members, self._page // LANES, self.state
        first, own = key * members, self._row(key, row)
        with T.serial(0, members) as g:
            peak = v.local(1)
            v.clear(peak, 1, MASKED)
            with T.serial(0, count) as p:
                for c in range(chunks):
                    score = v.load(self.scores, first + g, p * self._page + c * LANES)
                    v.store(tirx.max(v.load(peak, 0, 0), score), peak, 0, 0)
            v.put(v.largest(peak, 0), self.factors, first + g)
        lanes = v.lanes_for(members)
        for g in range(0, members, lanes):
            old = v.load(state.top, own + g, lanes=lanes)
            top = v.local(1, lanes)
            peaks = v.load(self.factors, first + g, lanes=lanes)
            v.store(tirx.max(old, peaks), top, 0, 0, lanes=lanes)
            fall = old - v.load(top, 0, 0, lanes=lanes)
            v.store(exp2(fall, lanes), self.factors, first + g, lanes=lanes)
            v.store(v.load(top, 0, 0, lanes=lanes), state.top, own + g, lanes=lanes)

    def _soften(self, key: int, row: Index, start: Expr, count: Expr) -> None:
        """Turn scores into weights, and add those up."""
        state, chunks = self.state, self._page // LANES
        first, own = key * self.tile.members, self._row(key, row)
        with T.serial(0, self.tile.members) as g:
            mass = v.local(1)
            factor = v.splat(self.factors[first + g])
            v.store(v.load(state.mass, own + g, 0) * factor, mass, 0, 0)
            with T.serial(0, count) as p:
                at = self._place(start + p, key)
                for c in range(chunks):
                    column = p * self._page + c * LANES
                    weight = v.local(1)
                    score = v.load(self.scores, first + g, column)
                    v.store(exp2(score - v.splat(state.top[own + g])), weight, 0, 0)
                    v.accumulate(mass, 0, v.load(weight, 0, 0))
                    scale = self.cache.value_scales(at, c)
                    kept = v.load(weight, 0, 0)
                    v.store(kept if scale is None else kept * scale, self.scores, first + g, column)
            v.store(v.load(mass, 0, 0), state.mass, own + g, 0)

    def _weigh(self, row: Index, position: Expr, start: Expr, end: Expr) -> None:
        """out = out · factor + weights · values, `vectors` of each member's at a time.

        Values after the last member's token have no weight, and are not read.
        """
        tile, d = self.tile, self.state.d
        width = v.lanes_for(d) * tile.vectors
        with T.serial(0, d // width) as strip:
            outs = [self._columns(key, row, strip) for key in range(tile.key_heads)]
            for out in outs:
                out.load(self.factors)
            with T.serial(0, tirx.min(end - start, tile.pages)) as p:
                number = start + p
                at = [self._place(number, key) for key in range(tile.key_heads)]
                after = tirx.min(number + tile.pages, self.cache.length[0] // self._page)
                following = [self._place(after, key) for key in range(tile.key_heads)]
                seen = tirx.min(position + 1 - number * self._page, self._page)
                with T.serial(0, seen) as t:
                    for out, place in zip(outs, at, strict=True):
                        values = [self.cache.values(place, t, c, out.lanes) for c in out.columns]
                        out.add(values, self.scores, p * self._page + t)
                    if tile.ahead:
                        share = strip * self._page + t
                        for place in following:
                            self.cache.ask_keys(place, share, d // width * self._page)
            for out in outs:
                out.store()

    def _columns(self, key: int, row: Index, strip: Index) -> "_Strip":
        members, vectors, lanes = self.tile.members, self.tile.vectors, v.lanes_for(self.state.d)
        columns = [strip * (lanes * vectors) + c * lanes for c in range(vectors)]
        sums = v.Registers.make(members * vectors, lanes=lanes)
        first = key * members
        return _Strip(
            out=self.state.out,
            row=self._row(key, row),
            first=first,
            members=members,
            columns=columns,
            lanes=lanes,
            sums=sums,
        )


@dataclass(frozen=True, slots=True)
class _Strip:
    """Some columns of the members' outputs, in registers."""

    out: Buffer
    row: Index  # the first member's
    first: int  # its row of the weights
    members: int
    columns: list[Expr]
    lanes: int
    sums: v.Registers  # of member g, column c: g · columns + c

    def load(self, factors: Buffer) -> None:
        """out · factor of each member."""
        for g, c, held in self._each():
            old = v.load(self.out, self.row + g, self.columns[c], lanes=self.lanes)
            v.store(old * v.splat(factors[self.first + g], self.lanes), *held, 0, lanes=self.lanes)

    def add(self, values: list[Expr], weights: Buffer, t: Index) -> None:
        """A token's values by each member's weight."""
        for g, c, held in self._each():
            weight = v.splat(weights[self.first + g, t], self.lanes)
            total = v.load(*held, 0, lanes=self.lanes) + values[c] * weight
            v.store(total, *held, 0, lanes=self.lanes)

    def store(self) -> None:
        for g, c, held in self._each():
            total = v.load(*held, 0, lanes=self.lanes)
            v.store(total, self.out, self.row + g, self.columns[c], lanes=self.lanes)

    def _each(self) -> Iterator[tuple[int, int, tuple[Buffer, int]]]:
        """Member, column, and where their sums are."""
        count = len(self.columns)
        for g, c in product(range(self.members), range(count)):
            yield g, c, self.sums[g * count + c]
