"""Which task to give the next round: the one that promises most time saved a second of tuning.

    promise = share of the model's time  x  expected gain of a round  /  seconds of a round

The gain expected is half of what the last round gained, or what hope is left: a few percent,
halved with each round that gained nothing, times the part of the space nobody has seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

HOPE: Final = 0.04  # of a task that was never tried
LEAST: Final = 3  # rounds of each of the heaviest tasks
HEAVIEST: Final = 5
PATIENCE: Final = 0.5  # what is left of it after a round without gain


@dataclass(slots=True)
class Standing:
    """What the scheduler knows of a task; shares are those of the model's time."""

    share: float
    unseen: float = 1.0  # of its space
    rounds: int = 0
    fruitless: int = 0  # rounds without a gain, in a row
    gain: float = 0.0  # of the last round, relative
    seconds: float = 1.0  # of the last round

    @property
    def promise(self) -> float:
        """Share of the model's time that a second of tuning may save; 0: nothing is left."""
        if not self.unseen:
            return 0.0
        hope = HOPE * PATIENCE**self.fruitless * self.unseen
        return self.share * max(self.gain / 2, hope) / self.seconds

    def rounded(self, gain: float, seconds: float, unseen: float) -> None:
        """A round is over."""
        self.rounds += 1
        self.fruitless = 0 if gain > 0 else self.fruitless + 1
        self.gain, self.seconds, self.unseen = gain, max(seconds, 1e-3), unseen


def next_task(standings: Sequence[Standing]) -> int | None:
    """The number of the task to work on; None when all are done.

    Each gets a round first, the heaviest before the others; then the heaviest few get more,
    since one round says little of a task.
    """
    by_share = sorted(range(len(standings)), key=lambda i: -standings[i].share)
    for least, numbers in ((1, by_share), *((n, by_share[:HEAVIEST]) for n in range(2, LEAST + 1))):
        owed = (i for i in numbers if standings[i].rounds < least and standings[i].unseen)
        number = next(owed, None)
        if number is not None:
            return number
    best = max(range(len(standings)), key=lambda i: standings[i].promise, default=None)
    return best if best is not None and standings[best].promise > 0 else None


def shares(calls: Sequence[Mapping[str, int]], microseconds: Sequence[float]) -> list[float]:
    """Of each task, its part of a token's and of a prompt's time, which count alike."""
    functions = sorted({name for one in calls for name in one})
    totals = {
        f: sum(one.get(f, 0) * us for one, us in zip(calls, microseconds, strict=True))
        for f in functions
    }
    return [
        sum(one.get(f, 0) * us / totals[f] for f in functions if totals[f]) / len(functions)
        for one, us in zip(calls, microseconds, strict=True)
    ]
