"""Which points look fast: XGBoost over what is known of a point, learnt from what was measured.

    log(time / default's time)  ~  trees(knobs, facts of the workload, derived numbers)

A model is fitted in a process of its own with a fixed number of threads: OpenMP does not
survive a fork, and another number of threads may sum in another order. What was measured is
kept per target (`Memory`), so the next model begins with what this one learnt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from mlc_compile.records import Choice
from mlc_compile.schedule.family import Family
from mlc_compile.tune.cost_worker import MODULE, Predicted, Question
from mlc_compile.tune.worker import Trouble, Worker

LEAST_SAMPLES: Final = 8  # fewer say nothing
MOST_SAMPLES: Final = 4096  # of a family, the latest
SECONDS: Final = 120.0


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured point: its family, its features, its time over the default's."""

    family: str
    workload: str  # its digest
    space: int
    choice: Choice
    features: dict[str, float]
    cost: float


class Model(Protocol):
    """What the search asks; tests have one without a process."""

    def predict(
        self, samples: Sequence[Sample], features: Sequence[Mapping[str, float]]
    ) -> list[float] | None:
        """Costs, lower is faster, after learning from `samples`; None where nothing is known."""
        ...

    def close(self) -> None:
        """Let go of the process."""
        ...


def features_of(family: Family[Any], point: Any) -> dict[str, float]:
    """What the model sees of a point: its knobs, the workload's numbers, what is derived."""
    facts = {f"fact {k}": float(v) for k, v in family.workload.facts if isinstance(v, int)}
    words = {f"fact {k}={v}": 1.0 for k, v in family.workload.facts if isinstance(v, str)}
    knobs = {f"knob {k}": v for k, v in family.space.features(point).items()}
    derived = {f"derived {k}": float(v) for k, v in family.derived(point).items()}
    return {**facts, **words, **knobs, **derived}


@dataclass(slots=True)
class Boosted:
    """XGBoost in a process; None for a prediction where it fails, with a note of why."""

    seed: int
    worker: Worker = field(default_factory=lambda: Worker(MODULE, threads=2))
    notes: list[str] = field(default_factory=list)

    def predict(
        self, samples: Sequence[Sample], features: Sequence[Mapping[str, float]]
    ) -> list[float] | None:
        """Learn anew and predict: there are never so many samples that it would take long."""
        if len(samples) < LEAST_SAMPLES or not features:
            return None
        names = sorted({name for s in samples for name in s.features})
        question = Question(
            rows=_table([s.features for s in samples], names),
            labels=tuple(math.log(s.cost) for s in samples),
            asked=_table(features, names),
            seed=self.seed,
        )
        try:
            costs = self.worker.ask(question, Predicted, SECONDS).costs
        except Trouble as e:
            self.notes.append(f"the cost model failed, candidates are drawn at random: {e}")
            return None
        return list(costs) if all(map(math.isfinite, costs)) else None

    def close(self) -> None:
        """Kill the process."""
        self.worker.close()


def _table(
    rows: Sequence[Mapping[str, float]], names: Sequence[str]
) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row.get(name, 0.0) for name in names) for row in rows)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: the correlation of the ranks, ties sharing theirs; None for too few or all equal.

    1: the order is the same, 0: it has nothing to do with the other.
    """
    if len(one) < 3:
        return None
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else None


def _ranks(values: Sequence[float]) -> Any:
    array = np.asarray(values, float)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
