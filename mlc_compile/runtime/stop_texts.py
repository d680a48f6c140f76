"""Texts that end an answer: found in what is streamed, however it comes in pieces."""

from dataclasses import dataclass
from typing import Final

from mlc_compile.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StopTexts:
    """Texts before the first of which an answer ends."""

    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError for the empty text, which would end every answer."""
        if "" in self.texts:
            raise ConfigError("a stop text must not be empty", hint="leave it out")

    def found_in(self, text: str) -> int | None:
        """Where the one that is complete first begins; the longest, if several end there.

        So where a text ends does not depend on the pieces that it came in.
        """
        found = ((text.find(stop), len(stop)) for stop in self.texts)
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None

    def begun_in(self, text: str) -> int:
        """Length of the longest end of `text` that may be the beginning of one."""
        return max((_begun(text, stop) for stop in self.texts), default=0)


NO_STOP_TEXTS: Final = StopTexts()


class StoppedText:
    """A text in pieces that ends before a stop text; what may belong to one is held back."""

    def __init__(self, stops: StopTexts) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """What can be told now, and whether a stop text ended it."""
        text = self._held + piece
        end = self._stops.found_in(text)
        told = len(text) - self._stops.begun_in(text) if end is None else end
        self._held = "" if end is not None else text[told:]
        return text[:told], end is not None

    def flush(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
