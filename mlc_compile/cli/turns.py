"""What somebody says in lines, as turns: mostly a line is one, but a turn may have several.

A turn that begins with three double quotes goes on until a line that ends with three; a line
that ends with a backslash goes on in the next.
"""

from collections.abc import Callable, Iterator
from typing import Final

QUOTES: Final = '"""'
ON: Final = "\\"  # at the end of a line: there is more
FIRST, NEXT = "> ", "... "  # what is shown before a line of a turn


def read_turns(read_line: Callable[[str], str]) -> Iterator[str]:
    """Turns with their marks taken off, blank ones left out, until there are no more lines.

    `read_line(prompt)` gives the next line without its end, or raises EOFError; a turn that is
    unfinished by then is one all the same.
    """
    lines = _Lines(read_line)
    while (line := lines.read(FIRST)) is not None:
        turn = "\n".join(_quoted(line, lines) if _opens(line) else _continued(line, lines))
        if turn.strip():
            yield turn.strip("\n")  # a mark may have a line of its own


class _Lines:
    """The lines, None from their end on."""

    def __init__(self, read_line: Callable[[str], str]) -> None:
        self._read_line = read_line
        self._ended = False

    def read(self, prompt: str) -> str | None:
        try:
            return None if self._ended else self._read_line(prompt)
        except EOFError:
            self._ended = True  # a terminal would be asked again
            return None


def _opens(line: str) -> bool:
    """Whether a block begins: quotes that are closed before the line's end are just text."""
    text = line.strip()
    inner = text.removeprefix(QUOTES)
    return inner != text and QUOTES not in inner.removesuffix(QUOTES)


def _quoted(first: str, lines: _Lines) -> Iterator[str]:
    line: str | None = first.lstrip().removeprefix(QUOTES)
    while line is not None:
        if line.rstrip().endswith(QUOTES):
            yield line.rstrip().removesuffix(QUOTES)
            return
        yield line
        line = lines.read(NEXT)


def _continued(line: str | None, lines: _Lines) -> Iterator[str]:
    while line is not None and line.endswith(ON):
        yield line.removesuffix(ON)
        line = lines.read(NEXT)
    if line is not None:
        yield line
