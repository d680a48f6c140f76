"""What a measurement is: an outcome for each candidate, its cost beside the default's.

Who measures is a `Measurer`: this machine (`local`), or others (`remote`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mlc_compile.tune.runner import Timing

if TYPE_CHECKING:
    from mlc_compile.tune.tasks import Task

BUILDER: Final = "mlc_compile.tune.builder"
RUNNER: Final = "mlc_compile.tune.runner"
BUILD_SECONDS: Final = 60.0
RUN_SECONDS: Final = 30.0  # beside what the baseline's time says
PREPARE_SECONDS: Final = 180.0
GAUGE_SECONDS: Final = 60.0
# Of a candidate, and of one that may become a record: pairs, the noise aimed at, and the most
# seconds that its situations are given for that together.
QUICK: Final = (6, 0.02, 0.6)
THOROUGH: Final = (16, 0.005, 4.0)
LEAST_NOISE: Final = 0.002  # a median of pairs is not better than the clock and the alignment


@dataclass(frozen=True, slots=True)
class Measured:
    """A point's cost: its time over the default's of the same minute, over all situations.

    `noise` is what the cost may be off by; microseconds are those of the default, weighted alike.
    """

    point: Any
    cost: float
    noise: float
    default_microseconds: float

    @property
    def microseconds(self) -> float:
        """Of the point."""
        return self.cost * self.default_microseconds


@dataclass(frozen=True, slots=True)
class Failed:
    """A point without a time: `kind` is what a histogram of errors counts."""

    point: Any
    kind: str
    reason: str


Outcome = Measured | Failed


class Measurer(Protocol):
    """What the search asks; tests have one without processes."""

    def measure(self, task: "Task", points: Sequence[Any], *, thorough: bool) -> Iterator[Outcome]:
        """An outcome for each point, in order."""
        ...

    def bandwidth(self) -> float | None:
        """Bytes a second that what measures reads from memory; None where it could not say."""
        ...

    def close(self) -> None:
        """Let go of all processes."""
        ...


def joined(point: Any, timings: Sequence[Timing], weights: Sequence[float]) -> Outcome:
    """One cost of all situations: the weighted mean of their ratios."""
    values = [(t.ratio, t.noise, t.baseline_microseconds) for t in timings]
    if not values or not all(math.isfinite(x) for three in values for x in three):
        return Failed(point, "no time", "a time is not a number")
    if not all(ratio > 0 and base > 0 for ratio, _, base in values):
        return Failed(point, "no time", "a time is not above 0")
    shares = [w / sum(weights) for w in weights]
    rows = list(zip(shares, values, strict=True))
    return Measured(
        point,
        cost=sum(share * ratio for share, (ratio, _, _) in rows),
        noise=max(LEAST_NOISE, math.hypot(*(share * noise for share, (_, noise, _) in rows))),
        default_microseconds=sum(share * base for share, (_, _, base) in rows),
    )
