"""Which queries a block of prefill attention has, and which keys they see."""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels.gpu.words import Place
from mlc_compile.schedule.kernels.vector import Expr, Index

KEY, VALUE = 0, 1  # sides


@dataclass(frozen=True, slots=True)
class Keys:
    """Where keys and values are: how many a sequence has, and where each begins."""

    length: Callable[[Expr], Expr]  # of a sequence
    place: Callable[[int, Expr, Expr, Expr, Expr], Place]  # side, sequence, token, head, column


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile of rows: the query heads of key head `head` of some tokens of a sequence in a row."""

    count: int
    group: int  # query heads of a key head
    keys: Keys
    causal: Expr
    sequence: Expr
    head: Expr
    first: Expr  # row: token · group + query head
    start: Expr  # of the sequence in q
    tokens: Expr  # of the sequence in q
    length: Expr  # of the sequence in k

    def at(self, row: Index) -> tuple[Expr, Expr]:
        """Token in q and query head of a row of the tile; past the end, the last token's."""
        token = tirx.min((self.first + row) // self.group, self.tokens - 1)
        return self.start + token, self.head * self.group + (self.first + row) % self.group

    def is_real(self, row: Index) -> Expr:
        """Whether the row is one of the sequence's."""
        return (self.first + row) // self.group < self.tokens

    def limit(self, row: Index) -> Expr:
        """How many keys a row sees; a later row sees no fewer."""
        token = tirx.min((self.first + row) // self.group, self.tokens - 1)
        before = tirx.max(tirx.min(self.length - self.tokens + token + 1, self.length), 0)
        return tirx.Select(self.causal > 0, before, self.length)

    @property
    def seen(self) -> Expr:
        """How many keys any row of the tile sees."""
        return self.limit(self.count - 1)

    def key(self, side: int, token: Expr, column: Expr) -> Place:
        """Where a key or value is; past the end the last one, which no row sees."""
        token = T.bind(tirx.min(token, self.length - 1))
        return self.keys.place(side, self.sequence, token, self.head, column)
