"""How much of attention a task takes, and what it holds in registers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mlc_compile.artifact import FlatKV
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.vector import LANES
from mlc_compile.schedule.space import Space
from mlc_compile.target import Target

ROWS: Final = 24  # tokens a task takes in prefill: its state (rows · heads · d floats) stays in L1
MEMBERS: Final = 12  # queries that share a key: with more, conversions cost no less to speak of
SUMS: Final = 8  # independent ones hide a multiply-add's latency: 4 cycles, 2 a cycle
BLOCK: Final = 4  # pages in prefill; in decoding 1: 2 are 2 % slower on Zen 4, and 4 are 13 %
TILES: Final = {
    "rows": (4, 8, 12, 16, 24, 32, 48, 64),
    "tokens": (1, 2, 3, 4, 5, 6, 8, 12),
    "heads": (1, 2, 3, 4, 5, 6, 8),
    "pages": (1, 2, 4, 8),
    "chunks": (1, 2, 4),
    "vectors": (1, 2, 3, 4, 8),
    "chains": (1, 2, 4),
    "ahead": (0, 1),
    "splits": (1, 2, 3, 4, 8),
    "key_heads": (1, 2, 4),
}
OF_ROWS: Final = ("rows", "tokens", "heads", "pages", "chunks", "vectors", "ahead")
OF_ONE: Final = ("heads", "pages", "chunks", "vectors", "chains", "ahead")
OF_STEP: Final = (*OF_ONE, "splits", "key_heads")


@dataclass(frozen=True, slots=True)
class Tile:
    """Work of one task: `rows` tokens of `key_heads` key heads.

    A pass over a block of pages is by members: `tokens` of those tokens, `heads` query heads
    each. They share every key and value that they load.
    """

    rows: int
    tokens: int
    heads: int
    pages: int  # of a block: between two looks at the maximum
    chunks: int  # vectors of a member's scores that are summed at a time
    vectors: int  # the same of its output
    chains: int = 1  # sums that a score is cut into
    ahead: int = 0  # 1: who reads keys asks for values, and the other way round
    splits: int = 1  # tasks that share its key heads' pages, in decoding on the target's cores
    key_heads: int = 1  # whose pages are read side by side, in decoding

    @property
    def members(self) -> int:
        """Queries of a key head in one pass."""
        return self.tokens * self.heads

    @property
    def sums(self) -> int:
        """Vectors that the more crowded of both products adds to."""
        return self.key_heads * self.members * max(self.chunks * self.chains, self.vectors)

    @classmethod
    def of(
        cls, a: Attention, kv: FlatKV, target: Target, rows: int | None, key_heads: int = 1
    ) -> "Tile":
        """As many members as the registers let share a vector, and then as many vectors."""
        room = _Room.of(target, LANES)
        most = max((n for n in range(1, MEMBERS + 1) if room.fits(n, 1)), default=1)
        tokens, heads = _shape(a.h_q // a.h_kv, most, rows)
        members, chunks = key_heads * tokens * heads, chunks_of(kv)
        held = room.most(_divisors(chunks), members)
        chains = -(-SUMS // (members * held * room.each))
        lanes = v.lanes_for(a.d)
        columns = _divisors(a.d // lanes)
        return cls(
            rows=1 if rows == 1 else tokens * max(1, ROWS // tokens),
            tokens=tokens,
            heads=heads,
            pages=1 if rows == 1 else BLOCK,
            chunks=held,
            vectors=_Room.of(target, lanes).most(columns, members),
            chains=max(n for n in (1, 2, 4) if n <= max(1, chains) and a.d % n == 0),
            ahead=1,
            key_heads=key_heads,
        )

    @classmethod
    def of_step(cls, a: Attention, kv: FlatKV, target: Target) -> "Tile":
        """Of decoding's one launch: key heads for all streams of the target, tasks for all cores.

        While a head's keys are read its values are asked for, and the other way round: two
        streams a head. Emerald Rapids decodes 1.1 times as fast with four heads at a time, 4096
        tokens of float16 before.
        """
        room, alone = _Room.of(target, LANES), cls.of(a, kv, target, 1)

        def fit(key_heads: int) -> bool:
            sums = room.fits(key_heads * alone.heads, 2)  # two each: vectors of a page's scores
            return 2 * key_heads <= target.streams and a.h_kv % key_heads == 0 and sums

        key_heads = max((n for n in TILES["key_heads"] if fit(n)), default=1)
        splits = -(-target.cores * key_heads // a.h_kv)
        return replace(cls.of(a, kv, target, 1, key_heads), splits=splits)

    @classmethod
    def space(cls, a: Attention, kv: FlatKV, target: Target, rows: int | None) -> "Space[Tile]":
        """Heads, vectors and passes come out even, and the registers hold the sums."""
        return cls._space(
            a, kv, target, cls.of(a, kv, target, rows), OF_ROWS if rows is None else OF_ONE
        )

    @classmethod
    def space_of_step(cls, a: Attention, kv: FlatKV, target: Target) -> "Space[Tile]":
        """The same of decoding's one launch."""
        return cls._space(a, kv, target, cls.of_step(a, kv, target), OF_STEP)

    @classmethod
    def _space(
        cls, a: Attention, kv: FlatKV, target: Target, default: "Tile", names: Sequence[str]
    ) -> "Space[Tile]":
        per_key, chunks, columns = a.h_q // a.h_kv, chunks_of(kv), a.d // v.lanes_for(a.d)
        room = _Room.of(target, LANES)

        def valid(tile: Tile) -> bool:
            uneven = (
                per_key % tile.heads
                or a.h_kv % tile.key_heads
                or tile.rows % tile.tokens
                or chunks % tile.chunks
                or columns % tile.vectors
                or a.d % tile.chains
            )
            return not uneven and tile.sums * room.each <= room.registers

        return Space(default, {name: TILES[name] for name in names}, valid)


@dataclass(frozen=True, slots=True)
class _Room:
    """Of a machine's registers, `each` make a vector."""

    registers: int
    each: int

    @classmethod
    def of(cls, target: Target, lanes: int) -> "_Room":
        return cls(target.vector_registers, -(-lanes // target.f32_lanes))

    def fits(self, members: int, vectors: int) -> bool:
        """Whether they hold the sums of members with `vectors`, those and one number of theirs.

        A lone member needs each vector but once.
        """
        sums, shared = members * vectors * self.each, vectors * self.each if members > 1 else 1
        return sums + shared + 1 <= self.registers

    def most(self, counts: Iterable[int], members: int) -> int:
        """The most vectors of those that fit; 1 if none does."""
        return max((n for n in counts if self.fits(members, n)), default=1)


def chunks_of(kv: FlatKV) -> int:
    """Vectors of a page's scores."""
    assert kv.page % LANES == 0, "a page's scores are whole vectors"
    return kv.page // LANES


def _shape(per_key: int, most: int, rows: int | None) -> tuple[int, int]:
    """(tokens, heads) of many members: the fewest tokens that give three quarters of the most.

    A call has whole tokens of each pass only by chance, but all heads always.
    """
    shapes = [(1 if rows == 1 else max(1, most // heads), heads) for heads in _divisors(per_key)]
    fitting = [shape for shape in shapes if shape[0] * shape[1] <= most]
    best = max(tokens * heads for tokens, heads in fitting)
    return min(shape for shape in fitting if 4 * shape[0] * shape[1] >= 3 * best)


def _divisors(n: int) -> Iterator[int]:
    return (k for k in range(1, n + 1) if n % k == 0)
