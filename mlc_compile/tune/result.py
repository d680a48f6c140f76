"""What a run of tuning found, for the report and for scripts."""

import msgspec

from mlc_compile.tune.events import Untunable


class TaskResult(msgspec.Struct, frozen=True):
    """One task after the run; times are those of the last thorough measurement.

    `choice` is that of the best record, of this run or an earlier one; None: the default stays.
    `share` is of a token's and a prompt's time together, by the default.
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
    bytes_s: float | None  # that one call moves; None where that hangs on its tokens or the cache
    choice: dict[str, int] | None
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
    gains: dict[str, float]  # function -> its kernels' time before over after, by the records
    notes: tuple[str, ...]
    complete: bool  # no task has anything left to try
