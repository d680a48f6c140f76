"""How near a task comes to what its machine allows, and that in a sentence.

    least time of a call = max(bytes / bandwidth, operations / peak)
    share of the roof    = least time / measured time

Both roofs are measured by what measures candidates: memory by reading a buffer larger than all
caches, arithmetic by the fastest tile of `kernels.peak`. Of several situations all numbers are
weighted means, as their times are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from mlc_compile.tune.inputs import Situation
from mlc_compile.tune.measure import Measured, Measurer

if TYPE_CHECKING:
    from mlc_compile.tune.tasks import Task

NEAR: Final = 0.8  # of the roof: what is left is the machine's own

Bound = Literal["memory", "arithmetic"]
BOUNDS: Final[Mapping[Bound, str]] = {
    "memory": "reads at {} % of the bandwidth",
    "arithmetic": "computes at {} % of the peak",
}


class Roof(msgspec.Struct, frozen=True):
    """What the machine that measures can do; None or absent: not known."""

    bytes_s: float | None = None
    ops_s: Mapping[str, float] = {}  # by arithmetic; a multiply-add is two


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call in one situation, which is so much of the whole; 0 where it is not known."""

    share: float
    nbytes: float
    operations: float


@dataclass(frozen=True, slots=True)
class Pace:
    """A call's rates, and its share of the roof that bounds it; None: not known."""

    bytes_s: float | None
    ops_s: float | None
    share: float | None = None
    bound: Bound | None = None

    @property
    def told(self) -> str:
        """`reads at 87 % of the bandwidth`, or what else is known; empty for nothing."""
        if self.share is None or self.bound is None:
            return "" if self.bytes_s is None else f"reads {self.bytes_s / 1e9:.1f} GB/s"
        reached = BOUNDS[self.bound].format(f"{100 * self.share:.0f}")
        beyond = self.share > 1 and self.bound == "memory"
        return f"{reached}, from caches or in more places at once" if beyond else reached


def work_of(task: "Task") -> tuple[Work, ...]:
    """What a call of the task moves and computes, by situation."""
    total = sum(s.weight for s in task.situations)
    count = task.family.operations
    return tuple(Work(s.weight / total, moved(s), count(s.rows, s.length)) for s in task.situations)


def moved(situation: Situation) -> float:
    """Bytes that must be read and written: each once, of a state what one layer holds."""
    plain = sum(situation.nbytes(role) for role in ("weights", "input", "result"))
    return plain + situation.filled * situation.nbytes("state") / situation.layers


def pace_of(work: Sequence[Work], arithmetic: str, microseconds: float, roof: Roof) -> Pace:
    """The rates of a call that takes so long."""
    seconds = 1e-6 * microseconds
    nbytes = sum(w.share * w.nbytes for w in work)
    operations = sum(w.share * w.operations for w in work)
    peak = roof.ops_s.get(arithmetic)
    rates = nbytes / seconds or None, operations / seconds or None
    if roof.bytes_s is None or not nbytes:
        return Pace(*rates)
    reading = [w.share * w.nbytes / roof.bytes_s for w in work]
    computing = [w.share * w.operations / peak if peak else 0.0 for w in work]
    least = sum(map(max, reading, computing))
    bound: Bound = "memory" if sum(reading) >= sum(computing) else "arithmetic"
    return Pace(*rates, least / seconds, bound)


def finding(pace: Pace, *, speedup: float | None, trials: int, unseen: int) -> str:
    """What tuning found of a task, in a sentence; `speedup` None: the default stays."""
    if speedup is not None:
        said = f"{speedup:.3f} times as fast as the default"
        return f"{said}, and {pace.told}" if pace.told else said
    if pace.share is not None and NEAR <= pace.share <= 1:
        return f"the default {pace.told}: nothing to gain"
    if unseen and not trials:
        return f"not tried: the default {pace.told}" if pace.told else "not tried"
    lost = f"none of {trials} trials beat the default" if unseen else "no choice beats the default"
    return f"{lost}, which {pace.told}" if pace.told else lost


def measure_roof(measurer: Measurer, peaks: Iterable["Task"], kinds: Iterable[str]) -> Roof:
    """Of the machine that measures; `peaks` are kernels that only compute, `kinds` those asked."""
    wanted, best = set(kinds), dict[str, float]()
    for task in peaks:
        kind = task.family.arithmetic
        if kind in wanted:
            rate = _rate(measurer, task)
            best[kind] = max(rate, best.get(kind, 0.0))
    return Roof(measurer.bandwidth(), {kind: rate for kind, rate in best.items() if rate})


def _rate(measurer: Measurer, task: "Task") -> float:
    """Operations a second of a kernel with one point; 0 where it fails."""
    (outcome,) = measurer.measure(task, [task.family.space.default], thorough=False)
    if not isinstance(outcome, Measured):
        return 0.0
    (work,) = work_of(task)
    return work.operations / (1e-6 * min(outcome.microseconds, outcome.default_microseconds))
