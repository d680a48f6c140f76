"""The range of each number that sampling takes: what a value must be, and which one does nothing.

One table, from which values are checked, advice is read and help is written.
"""

from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` (itself left out if `above`) to `most`, with what `neutral` does."""

    least: float
    most: float | None
    neutral: float | None  # None: to leave it out
    then: str
    above: bool = False

    def __contains__(self, value: float) -> bool:
        reached = value > self.least if self.above else value >= self.least
        return reached and (self.most is None or value <= self.most)

    @property
    def rule(self) -> str:
        """What a value must be: `from 0 to 1`."""
        if self.most is None:
            return f"{self.least:g} or more"
        low, high = ("above", "and at most") if self.above else ("from", "to")
        return f"{low} {self.least:g} {high} {self.most:g}"

    @property
    def remark(self) -> str:
        """What the value means that does nothing: `0 changes nothing`."""
        return f"left out: {self.then}" if self.neutral is None else f"{self.neutral:g} {self.then}"

    @property
    def meta(self) -> msgspec.Meta:
        """The same for a field of a struct."""
        if self.above:
            return msgspec.Meta(gt=self.least, le=self.most)
        return msgspec.Meta(ge=self.least, le=self.most)


RANGES: Final = {  # by the fields of `Sampling`
    "temperature": Range(0, None, 0, "chooses greedily"),
    "top_k": Range(0, None, 0, "leaves every token in"),
    "top_p": Range(0, 1, 1, "leaves every token in", above=True),
    "min_p": Range(0, 1, 0, "leaves every token in"),
    "presence_penalty": Range(-2, 2, 0, "changes nothing"),
    "frequency_penalty": Range(-2, 2, 0, "changes nothing"),
    "repetition_penalty": Range(0.1, 10, 1, "changes nothing"),
    "seed": Range(0, None, None, "another text each time"),
}
