"""y = x w^T strip by strip: some row blocks of w are unpacked, and all rows of x swept over them.

INT4 weights by int8 activations that `quantize` prepared. What a strip is unpacked to and how
it is multiplied is a `Method`; here is all that methods have in common.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.layout import GROUP, ROWS
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.quantize import Quantized
from mlc_compile.schedule.kernels.vector import Buffer, Expr, Index
from mlc_compile.schedule.kernels.weights import Int4


class Cut(Protocol):
    """The part of a tile that says what a task unpacks, and when."""

    @property
    def blocks(self) -> int:
        """Row blocks of a strip."""

    @property
    def parts(self) -> int:
        """Of k: the unpacked weights of one lie in the cache while it is swept."""

    @property
    def ahead(self) -> int:
        """Pairs of groups of the next strip or part that every step of rows asks for."""


class Panel(Protocol):
    """Unpacked weights of a part of a strip."""

    def fill(
        self, codec: Int4, parts: list[Buffer], source: tuple[Index, Index], at: tuple[Index, int]
    ) -> None:
        """Unpack block and group (of `Method.group` k) `source` to group and block `at`."""


P = TypeVar("P", bound=Panel)


@dataclass(frozen=True, slots=True)
class Part:
    """Groups of k: so many, from the first on."""

    groups: int
    first: Expr


@dataclass(frozen=True, slots=True)
class Method(Generic[P]):
    """How a strip is multiplied.

    `panel(groups)` is scratch memory, and `add(x, panel, sums, rows, part)` adds to sums by rows
    of x and row blocks, a vector each, the products of a part.
    """

    rows: int  # of x in a step
    group: int  # k that share a scale of x
    panel: Callable[[int], P]
    add: Callable[[Quantized, P, v.Registers, list[Expr], Part], None]


def gemm(codec: Int4, n: int, cut: Cut, method: Method[P], *, residual: bool) -> tirx.PrimFunc:
    """codes, scales, offsets of x[1, m, k], parts of w[n, k], residual if any -> y[1, m, n].

    The last step of rows is ragged: its surplus rows repeat the last row and write what that
    row writes.
    """
    m, depth = v.size("m"), codec.k // method.group // cut.parts
    with v.kernel() as builder:
        names = ("acts", "act_scales", "act_offsets")
        x = Quantized.declare(m, codec.k, method.group, names)
        weights = codec.arguments()
        base = v.argument("residual", (1, m, n)) if residual else None
        y = v.argument("y", (1, m, n))
        with T.parallel(0, codec.blocks // cut.blocks) as strip:
            blocks = [strip * cut.blocks + b for b in range(cut.blocks)]
            panel = method.panel(depth)
            with _each_part(cut.parts) as part:
                with T.serial(0, depth) as g:
                    for b, block in enumerate(blocks):
                        panel.fill(codec, weights, (block, part * depth + g), (g, b))
                with T.serial(0, (m + (method.rows - 1)) // method.rows) as step:
                    if cut.ahead:
                        _ask_next(codec, weights, blocks, (part, step), (cut.parts, cut.ahead))
                    rows = [tirx.min(step * method.rows + i, m - 1) for i in range(method.rows)]
                    sink = _Sink(y, base, n, rows, blocks)
                    sums = sink.begin(part)
                    method.add(x, panel, sums, rows, Part(depth, part * depth))
                    sink.end(sums, part, cut.parts)
    return builder.get()


@contextmanager
def _each_part(parts: int) -> Iterator[Index]:
    """A loop over the parts of k; without one if there is one part."""
    if parts == 1:
        yield 0
        return
    with T.serial(0, parts) as part:
        yield part


def _ask_next(
    codec: Int4,
    weights: list[Buffer],
    blocks: list[Expr],
    at: tuple[Index, Index],
    how: tuple[int, int],
) -> None:
    """Ask for some pairs of groups of what is unpacked next: strip or part of k.

    `at` is the part and the step of rows, `how` the number of parts and of pairs.
    """
    (part, step), (parts, ahead) = at, how
    pairs = codec.k // GROUP // 2 // parts
    following = [block + len(blocks) for block in blocks] if parts == 1 else blocks
    for i in range(ahead):
        pair = step * ahead + i
        with T.If(pair < pairs), T.Then():
            place = pair if parts == 1 else (part + 1) * pairs + pair
            for block in following:
                codec.ask(weights, block, place)


@dataclass(frozen=True, slots=True)
class _Sink:
    """A tile of y: `rows` of it by row blocks `blocks` of w; `base` is the residual, if any."""

    y: Buffer
    base: Buffer | None
    n: int
    rows: list[Expr]
    blocks: list[Expr]

    @property
    def _places(self) -> list[tuple[tuple[Index, Expr], Expr]]:
        """Where each sum goes: its row, its first column."""
        return [((0, row), block * ROWS) for row in self.rows for block in self.blocks]

    def begin(self, part: Index) -> v.Registers:
        """The sums before a part of k: zero, then what the part before left in y.

        All are read before any is written, so that repeated rows stay equal.
        """
        acc = v.Registers.make(len(self._places))
        if isinstance(part, int):
            acc.clear()
            return acc
        with T.If(part == 0):
            with T.Then():
                acc.clear()
            with T.Else():
                for register, (at, column) in enumerate(self._places):
                    v.get_rows(self.y, at, column, self.n, *acc[register])
        return acc

    def end(self, acc: v.Registers, part: Index, parts: int) -> None:
        """Write the sums; the last of `parts` adds the residual."""
        if isinstance(part, int) or self.base is None:
            self._put(acc, self.base)
            return
        with T.If(part == parts - 1):
            with T.Then():
                self._put(acc, self.base)
            with T.Else():
                self._put(acc, None)

    def _put(self, acc: v.Registers, base: Buffer | None) -> None:
        for register, (at, column) in enumerate(self._places):
            v.put_rows(*acc[register], self.y, at, column, self.n, base)
