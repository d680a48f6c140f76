"""A run of tuning: rounds over all tasks until time, trials or points are used up.

A round proposes points of one task, measures each beside the default, and measures the best
again, thoroughly; what then beats the default by more than the noise, and every choice
before it, becomes a record at once. So an interrupt loses nothing that was found.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from mlc_compile.errors import TuningError
from mlc_compile.records import Partition, Record, RecordStore
from mlc_compile.tune.cost_model import Model, features_of
from mlc_compile.tune.events import Listener, Noted, Planned, Progressed, Recorded, Rounded, ignore
from mlc_compile.tune.measure import Failed, Measured, Measurer, Outcome
from mlc_compile.tune.memory import Memory
from mlc_compile.tune.result import TuneResult
from mlc_compile.tune.roof import measure_roof
from mlc_compile.tune.scheduler import Standing, next_task, shares
from mlc_compile.tune.search import Proposal, Search
from mlc_compile.tune.standing import TaskProgress, mean_correlation, point_of, wins
from mlc_compile.tune.tasks import Task, Tasks

BATCH: Final = 64  # candidates of a round
LEAST_BATCH: Final = 8
ROUNDS: Final = 3  # that each task should get in the time there is
TRIAL_SECONDS: Final = 1.0  # what a trial takes, before one was made
CONFIRMED: Final = 2  # points that a round measures again
KNOWN: Final = 2  # points of earlier runs that the first round measures again


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: None is no limit, and without both the spaces are searched to their end."""

    seconds: float | None = None
    trials: int | None = None

    def batch(self, tasks: int) -> int:
        """Candidates of a round, fewer where the budget would not last for some rounds of each."""
        afforded = [BATCH * ROUNDS * tasks]
        if self.seconds is not None:
            afforded.append(int(self.seconds / TRIAL_SECONDS))
        if self.trials is not None:
            afforded.append(self.trials)
        return max(LEAST_BATCH, min(BATCH, min(afforded) // (ROUNDS * max(1, tasks))))


@dataclass(slots=True)
class Session:
    """What a run works with; `clock` counts seconds, tests have their own."""

    partition: Partition
    store: RecordStore
    measurer: Measurer
    model: Model
    memory: Memory
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    listener: Listener = ignore
    clock: Callable[[], float] = time.monotonic
    trials: int = 0
    appended: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _start: float = 0.0

    def run(self, tasks: Tasks) -> TuneResult:
        """Tune; TuningError, and a store as it was, where nothing could be measured."""
        self._start = self.clock()
        self.listener(Planned(tuple(t.row for t in tasks.tasks), tasks.untunable))
        standing = self._begin(tasks.tasks)
        if not standing and tasks.tasks:
            self._nothing()
        batch = self.budget.batch(len(standing))
        while not self._over:
            number = next_task([one.standing for one in standing])
            if number is None:
                break
            self._round(standing[number], batch)
        if self.trials and self.trials == sum(one.errors for one in standing):
            self._nothing()
        return self._result(standing, tasks)

    def _begin(self, tasks: Sequence[Task]) -> list[TaskProgress]:
        """Time the default of each task, and remember what earlier runs know."""
        chosen = self.store.chosen(self.partition)
        found: list[TaskProgress] = []
        for task in tasks:
            default = task.family.space.default
            (outcome,) = self.measurer.measure(task, [default], thorough=False)
            if isinstance(outcome, Failed):
                self.kinds[outcome.kind] += 1
                self._note(f"{task.name} is left out, its default failed: {outcome.reason}")
                continue
            record = chosen.find(task.family.workload, task.family.version)
            one = TaskProgress(
                task,
                Search(task, self.seed),
                Standing(0.0),
                outcome.default_microseconds,
                record=record,
            )
            self._remember(one)
            found.append(one)
        times = [one.default_microseconds for one in found]
        for one, share in zip(found, shares([o.task.calls for o in found], times), strict=True):
            one.standing.share = share
        return sorted(found, key=lambda one: -one.standing.share)

    def _remember(self, one: TaskProgress) -> None:
        """Points of earlier runs are not tried again, but for the best of them."""
        family = one.task.family
        for sample in self.memory.about(family.workload, family.version):
            point = family.space.point(sample.choice)
            if point is not None and point != family.space.default:
                known = Measured(point, sample.cost, 0.0, one.default_microseconds)
                one.search.learn(known)

    def _round(self, one: TaskProgress, batch: int) -> None:
        start, before = self.clock(), one.cost
        again = self._known(one) if not one.standing.rounds else []
        proposals = [*again, *one.search.propose(self._room(batch), partial(self._predict, one))]
        outcomes = list(self._measured(one, proposals))
        correlation = one.note_predictions(proposals, outcomes)
        self._confirm(one, outcomes)
        unseen = len(one.search.unseen()) / one.task.family.space.size
        seconds = self.clock() - start
        one.standing.rounded(before - one.cost, seconds, unseen)
        self.listener(
            Rounded(
                one.task.name,
                one.standing.rounds,
                one.trials,
                one.errors,
                1 / one.cost,
                correlation,
                seconds,
            )
        )

    def _known(self, one: TaskProgress) -> list[Proposal]:
        """What an earlier run found best, to be compared with the default of this one."""
        points = [point_of(one.task, one.record), *(o.point for o in one.search.fastest(KNOWN))]
        return [Proposal(point) for point in dict.fromkeys(points) if point is not None]

    def _predict(self, one: TaskProgress, points: Sequence[Any]) -> list[float] | None:
        family = one.task.family
        samples = self.memory.of(family.workload.family)
        return self.model.predict(samples, [features_of(family, point) for point in points])

    def _measured(self, one: TaskProgress, proposals: Sequence[Proposal]) -> Iterator[Outcome]:
        """Outcomes as they come, until time is up."""
        points = [proposal.point for proposal in proposals]
        for outcome in self.measurer.measure(one.task, points, thorough=False):
            self.trials += 1
            one.take(outcome)
            if isinstance(outcome, Failed):
                self.kinds[outcome.kind] += 1
            else:
                self.memory.add([one.sample(outcome)])
            self._tell(one)
            yield outcome
            if self._over:
                return

    def _confirm(self, one: TaskProgress, outcomes: Sequence[Outcome]) -> None:
        """Measure the best of a round thoroughly; a winner becomes a record."""
        hopeful = [o for o in outcomes if isinstance(o, Measured) and o.cost < one.cost]
        points = [o.point for o in sorted(hopeful, key=lambda o: o.cost)[:CONFIRMED]]
        for outcome in self.measurer.measure(one.task, points, thorough=True):
            if isinstance(outcome, Measured) and wins(outcome) and outcome.cost < one.cost:
                one.best = outcome
                self._keep(one, outcome)

    def _keep(self, one: TaskProgress, best: Measured) -> None:
        """Append the record, unless the store has this choice already."""
        family = one.task.family
        choice = family.space.choice(best.point)
        if one.record is not None and one.record.choice == choice:
            return
        record = Record(
            workload=family.workload,
            space=family.version,
            choice=choice,
            microseconds=best.microseconds,
            default_microseconds=best.default_microseconds,
            noise=best.noise,
            trials=one.trials,
            seed=self.seed,
            history=one.improvements,
        )
        self.appended += 1 - len(self.store.append(self.partition, [record]))
        times = best.microseconds, best.default_microseconds, best.noise
        self.listener(Recorded(one.task.name, choice, *times))

    def _tell(self, one: TaskProgress) -> None:
        cost = one.history[-1][1]
        limit, spent = self.budget.seconds, self.clock() - self._start
        left = None if limit is None else max(0.0, limit - spent)
        name, best = one.task.name, cost * one.default_microseconds
        self.listener(Progressed(name, one.trials, one.errors, best, 1 / cost, spent, left))

    @property
    def _over(self) -> bool:
        limits = self.budget
        late = limits.seconds is not None and self.clock() - self._start >= limits.seconds
        return late or (limits.trials is not None and self.trials >= limits.trials)

    def _room(self, batch: int) -> int:
        return batch if self.budget.trials is None else min(batch, self.budget.trials - self.trials)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.listener(Noted(text))

    def _nothing(self) -> None:
        told = ", ".join(f"{kind}: {count}" for kind, count in self.kinds.most_common())
        raise TuningError(
            f"tuning measured nothing: all {sum(self.kinds.values())} trials failed ({told})",
            hint="the reasons are among the notes of --json; is the machine out of memory?",
        )

    def _result(self, standing: Sequence[TaskProgress], tasks: Tasks) -> TuneResult:
        seconds = self.clock() - self._start
        correlations = [pair for one in standing for pair in one.correlations]
        kinds = {one.task.family.arithmetic for one in standing}
        roof = measure_roof(self.measurer, tasks.peaks, kinds)
        return TuneResult(
            tasks=tuple(one.result(roof) for one in standing),
            untunable=tasks.untunable,
            trials=self.trials,
            errors=dict(self.kinds),
            records=self.appended,
            seconds=seconds,
            seconds_per_trial=seconds / self.trials if self.trials else 0.0,
            correlation=mean_correlation(correlations),
            roof=roof,
            gains=gains(standing),
            notes=tuple(self.notes),
            complete=all(not one.standing.unseen for one in standing),
        )


def gains(standing: Sequence[TaskProgress]) -> dict[str, float]:
    """Of each function: the time of its tunable kernels as the rules have them, over as tuned."""
    found = {}
    for function in sorted({name for one in standing for name in one.task.calls}):
        times = [
            (one.task.calls.get(function, 0) * one.default_microseconds, one.cost)
            for one in standing
        ]
        before, after = sum(t for t, _ in times), sum(t * cost for t, cost in times)
        found[function] = before / after if after else 1.0
    return found
