"""What a run of tuning found, for the report and for scripts."""

import msgspec

from mlc_compile.records import Choice
from mlc_compile.tune.events import Untunable
from mlc_compile.tune.roof import Bound, Roof


class TaskResult(msgspec.Struct, frozen=True):
    """One task after the run; times are those of the last thorough measurement.

    `choice` is that of the best record, of this run or an earlier one; None: the default stays.
    `share` is of a token's and a prompt's time together, by the default. Rates are of the best;
    a kernel for any number of tokens has one over all those that it is timed at.
    """

    name: str
    calls: dict[str, int]
    share: float
    points: int
    rounds: int
    trials: int
    errors: int
    default_microseconds: float
    microseconds: float
    noise: float
    bytes_s: float | None  # read and written: weights, cache, activations
    ops_s: float | None  # a multiply-add is two
    bound: Bound | None  # what keeps it from being faster; None: the roof is not known
    roof_share: float | None  # the least time that the roof allows, over the time it takes
    finding: str  # in a sentence: what there was to gain
    choice: Choice | None
    correlation: float | None  # of predicted and measured costs by rank, over all its rounds
    history: tuple[tuple[int, float], ...]  # trials so far, the best time over the default's

    @property
    def speedup(self) -> float:
        """How many times as fast as the default."""
        return self.default_microseconds / self.microseconds


class TuneResult(msgspec.Struct, frozen=True):
    """All tasks, heaviest first. `errors` counts failed trials by kind."""

    tasks: tuple[TaskResult, ...]
    untunable: tuple[Untunable, ...]
    trials: int
    errors: dict[str, int]
    records: int  # appended to the store
    seconds: float
    seconds_per_trial: float
    correlation: float | None  # the tasks' mean, weighted by what was predicted
    roof: Roof  # of the machine which measures
    gains: dict[str, float]  # function -> its kernels' time before over after, by the records
    notes: tuple[str, ...]
    complete: bool  # no task has anything left to try
