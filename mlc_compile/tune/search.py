"""Which points of one task to try next: evolution over its space, ranked by the cost model.

A generation is mutated and crossed from the points that look fast; of all that were met and
not yet measured the best are proposed, and a share at random, since the model may be wrong
where it has seen nothing. The same seed and the same measurements give the same proposals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from mlc_compile.tune.measure import Failed, Measured, Outcome
from mlc_compile.tune.tasks import Task

POPULATION: Final = 128
GENERATIONS: Final = 4
ELITE: Final = 16  # measured points that every population begins with
RANDOM_SHARE: Final = 0.1  # of what is proposed (the epsilon of epsilon-greedy)

Predict = Callable[[Sequence[Any]], list[float] | None]  # costs of points, if anything is known


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to measure, and the cost that the model expects, if it knows anything.

    `greedy`: it was chosen for that, and not drawn at random.
    """

    point: Any
    predicted: float | None = None
    greedy: bool = False


@dataclass(slots=True)
class Search:
    """Where the search of one task stands."""

    task: Task
    seed: int
    tried: dict[Any, Outcome] = field(default_factory=dict)
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        """Each task draws from its own stream, whatever order tasks take turns in."""
        self.random = Random(f"{self.seed} {self.task.family.workload.digest}")

    def unseen(self) -> list[Any]:
        """Points never tried; the default is, beside every candidate."""
        default = self.task.family.space.default
        return [p for p in self.task.family.space.points() if p != default and p not in self.tried]

    def fastest(self, count: int) -> list[Measured]:
        """Of the points measured, best first."""
        measured = [o for o in self.tried.values() if isinstance(o, Measured)]
        return sorted(measured, key=lambda o: o.cost)[:count]

    def errors(self) -> int:
        """How many points failed."""
        return sum(isinstance(o, Failed) for o in self.tried.values())

    def propose(self, count: int, predict: Predict) -> list[Proposal]:
        """At most `count` points never tried, what looks fastest first."""
        unseen = self.unseen()
        drawn = self.random.sample(unseen, len(unseen))
        ranked = self._ranked(set(unseen), drawn, predict)
        greedy = ranked[: count - round(count * RANDOM_SHARE)]
        known = {proposal.point for proposal in greedy}
        others = [point for point in drawn if point not in known][: count - len(greedy)]
        # Of those too the model must say what it expects: that is how well it is known.
        costs = predict(others) if greedy and others else None
        if costs is None:
            return [*greedy, *map(Proposal, others)]
        return [*greedy, *map(Proposal, others, costs)]

    def learn(self, outcome: Outcome) -> None:
        """Take one outcome in."""
        self.tried[outcome.point] = outcome

    def _ranked(self, unseen: set[Any], drawn: list[Any], predict: Predict) -> list[Proposal]:
        """Points met in some generation and not measured, by predicted cost."""
        elite = [o.point for o in self.fastest(ELITE)]
        population = [*elite, *drawn[: POPULATION - len(elite)]]
        met: dict[Any, float] = {}
        for _ in range(GENERATIONS):
            costs = predict(population)
            if costs is None:
                return []
            scored = sorted(zip(costs, range(len(population)), strict=True))
            met |= {population[i]: cost for cost, i in scored}
            population = self._next([population[i] for _, i in scored])
        wanted = [Proposal(p, cost, greedy=True) for p, cost in met.items() if p in unseen]
        return sorted(wanted, key=lambda p: p.predicted or 0.0)

    def _next(self, ranked: list[Any]) -> list[Any]:
        """A generation from the better half of the last, without repetitions."""
        space, parents = self.task.family.space, ranked[: max(2, len(ranked) // 2)]
        children = dict.fromkeys(parents[:ELITE])
        for _ in range(2 * POPULATION):
            if len(children) >= POPULATION:
                break
            one, other = self.random.choice(parents), self.random.choice(parents)
            children[space.mutated(space.crossed(one, other, self.random), self.random)] = None
        return list(children)
