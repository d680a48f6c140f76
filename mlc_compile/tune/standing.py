"""One task while it is tuned: its search, its best, what it told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlc_compile.records import Record
from mlc_compile.tune.cost_model import Sample, features_of, rank_correlation
from mlc_compile.tune.measure import Failed, Measured, Outcome
from mlc_compile.tune.result import TaskResult
from mlc_compile.tune.roof import Roof, finding, pace_of, work_of
from mlc_compile.tune.scheduler import Standing
from mlc_compile.tune.search import Proposal, Search
from mlc_compile.tune.tasks import Task


@dataclass(slots=True)
class TaskProgress:
    """`best` was measured thoroughly in this run; `record` is the store's."""

    task: Task
    search: Search
    standing: Standing
    default_microseconds: float
    best: Measured | None = None
    record: Record | None = None
    trials: int = 0
    errors: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    correlations: list[tuple[int, float]] = field(default_factory=list)  # predictions, by rank

    @property
    def cost(self) -> float:
        """Of the best, beside the default: 1 where that is the best."""
        return 1.0 if self.best is None else self.best.cost

    def take(self, outcome: Outcome) -> None:
        """Count one trial."""
        self.search.learn(outcome)
        self.trials += 1
        self.errors += isinstance(outcome, Failed)
        quick = [o.cost for o in self.search.fastest(1)]
        self.history.append((self.trials, min([1.0, *quick])))

    def sample(self, measured: Measured) -> Sample:
        """What the cost model learns from it."""
        family = self.task.family
        return Sample(
            family=family.workload.family,
            workload=family.workload.digest,
            space=family.version,
            choice=family.space.choice(measured.point),
            features=features_of(family, measured.point),
            cost=measured.cost,
        )

    def note_predictions(
        self, proposals: Sequence[Proposal], outcomes: Sequence[Outcome]
    ) -> float | None:
        """How well the order of a round's costs was predicted."""
        expected = {p.point: p.predicted for p in proposals if p.predicted is not None}
        pairs = [
            (expected[o.point], o.cost)
            for o in outcomes
            if isinstance(o, Measured) and o.point in expected
        ]
        found = rank_correlation([a for a, _ in pairs], [b for _, b in pairs])
        if found is not None:
            self.correlations.append((len(pairs), found))
        return found

    def result(self, roof: Roof) -> TaskResult:
        """For the report; `roof` is the machine's."""
        best, family = self.best, self.task.family
        default = self.default_microseconds if best is None else best.default_microseconds
        pace = pace_of(work_of(self.task), family.arithmetic, default * self.cost, roof)
        return TaskResult(
            name=self.task.name,
            calls=dict(self.task.calls),
            share=self.standing.share,
            points=family.space.size,
            rounds=self.standing.rounds,
            trials=self.trials,
            errors=self.errors,
            default_microseconds=default,
            microseconds=default * self.cost,
            noise=0.0 if best is None else best.noise,
            bytes_s=pace.bytes_s,
            ops_s=pace.ops_s,
            bound=pace.bound,
            roof_share=pace.share,
            finding=finding(
                pace,
                speedup=None if best is None else 1 / best.cost,
                trials=self.trials,
                unseen=len(self.search.unseen()),
            ),
            choice=None if best is None else family.space.choice(best.point),
            correlation=mean_correlation(self.correlations),
            history=tuple(self.history),
        )

    @property
    def improvements(self) -> tuple[tuple[int, float], ...]:
        """The trials at which the best became faster, from the default at trial 0."""
        found = [(0, 1.0)]
        for trials, best in self.history:
            if best < found[-1][1]:
                found.append((trials, best))
        return tuple(found)


def mean_correlation(found: Sequence[tuple[int, float]]) -> float | None:
    """The mean of correlations, weighted by how many numbers each is of."""
    total = sum(count for count, _ in found)
    return sum(count * one for count, one in found) / total if total else None


def wins(measured: Measured) -> bool:
    """Whether a thorough measurement beats the default by more than its noise."""
    return measured.cost < 1 - measured.noise


def point_of(task: Task, record: Record | None) -> Any:
    """The point that a record names; None if there is none, or it names no point."""
    if record is None:
        return None
    return task.family.space.point(record.choice)
