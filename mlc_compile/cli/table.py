"""Tables that fit a terminal without cutting a number or a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.table import Column, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

GAP: Final = 2  # blanks between two columns
NARROWEST: Final = 12  # a folding column below this is a ribbon


@dataclass(frozen=True, slots=True)
class Yielding:
    """Headers of the columns that give way where a terminal is narrow; all others stay whole."""

    folding: Sequence[str] = ()  # their text goes on in the next line
    dropped: Sequence[str] = ()  # left out, the first of them first


class PlainTable(Table):
    """Columns of text without a frame; where not all fit, the yielding ones give way."""

    def __init__(self, headers: Sequence[str], yielding: Yielding) -> None:
        super().__init__(box=None, pad_edge=False)
        self._yielding = yielding
        for header in headers:
            self.add_column(header, no_wrap=header not in yielding.folding)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        columns = self._fitting(options.max_width)
        widths = self._widths(columns, options.max_width)
        # Another table: rich's columns know their place, which changes where one is left out.
        table = Table(box=None, pad_edge=False, title=self.title, title_justify="left")
        for column, width in zip(columns, widths, strict=True):
            table.add_column(column.header, width=width, no_wrap=column.no_wrap, overflow="fold")
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*row)
        # Wider than the terminal rather than cut: rich would shrink what must stay whole.
        width = max(options.max_width, sum(widths) + _gaps(columns))
        yield from table.__rich_console__(console, options.update(width=width))

    def _fitting(self, width: int) -> list[Column]:
        kept = self.columns
        for name in self._yielding.dropped:
            least = sum(_natural(c) if c.no_wrap else _narrow(c) for c in kept)
            if least + _gaps(kept) <= width:
                break
            kept = [column for column in kept if column.header != name]
        return kept

    @staticmethod
    def _widths(columns: Sequence[Column], width: int) -> list[int]:
        """Whole columns as wide as their text; the folding ones share what is left evenly."""
        room = width - _gaps(columns) - sum(_natural(c) for c in columns if c.no_wrap)
        widths = {c.header: _natural(c) for c in columns}
        folding = sorted((c for c in columns if not c.no_wrap), key=_natural)
        for i, column in enumerate(folding):  # what a narrow one leaves goes to the wider ones
            fair = max(room // (len(folding) - i), _narrow(column))
            widths[column.header] = min(_natural(column), fair)
            room -= widths[column.header]
        return [widths[c.header] for c in columns]


def _gaps(columns: Sequence[Column]) -> int:
    return GAP * (len(columns) - 1)


def _narrow(column: Column) -> int:
    return min(_natural(column), NARROWEST)


def _natural(column: Column) -> int:
    return max(cell_len(str(text)) for text in (column.header, *column.cells))
