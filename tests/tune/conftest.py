"""Tuning without a machine: a toy family, a measurer that is told every cost, a store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from mlc_compile.records import Partition, RecordStore, Workload
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.space import Space
from mlc_compile.tune.measure import Failed, Measured
from mlc_compile.tune.memory import Memory
from mlc_compile.tune.session import Budget, Session
from mlc_compile.tune.tasks import Task, Tasks


@dataclass(frozen=True)
class Point:
    """A point of the toy space."""

    a: int = 1
    b: int = 0


TOYS = {"a": (1, 2, 4, 8), "b": (0, 1, 2, 3)}


def toy_task(name="toy", calls=None, valid=lambda _: True, knobs=TOYS):
    """A task of a toy kernel that nobody builds."""

    def build(point):
        raise AssertionError(f"a test built {point}")

    family = Family(Workload.of(f"test.{name}", n=64), Space(Point(), knobs, valid), build, ())
    return Task(name, family, (), calls or {"decode": 1})


@dataclass
class FakeMeasurer:
    """Costs by point (1: as fast as the default), or an error's kind; `asked` is all it was."""

    cost: Callable[[str, Point], float | str]
    noise: float = 0.01
    microseconds: float = 100.0
    asked: list[tuple[str, Point, bool]] = field(default_factory=list)
    closed: bool = False
    bytes_s: float | None = None

    def measure(self, task, points, *, thorough):
        for point in points:
            self.asked.append((task.name, point, thorough))
            is_default = point == task.family.space.default
            cost = 1.0 if is_default else self.cost(task.name, point)
            if isinstance(cost, str):
                yield Failed(point, cost, "the test says so")
            else:
                yield Measured(point, cost, self.noise, self.microseconds)

    def bandwidth(self):
        return self.bytes_s

    def close(self):
        self.closed = True

    @property
    def candidates(self):
        """Every candidate of a round, in order."""
        asked = [(name, point) for name, point, thorough in self.asked if not thorough]
        return [(name, point) for name, point in asked if point != Point()]


class NoModel:
    """Knows nothing."""

    def predict(self, samples, features):
        return None

    def close(self):
        pass


class Oracle:
    """Knows the cost of features."""

    def __init__(self, cost: Callable[[Mapping[str, float]], float]) -> None:
        self.cost = cost

    def predict(self, samples, features):
        return [self.cost(f) for f in features]

    def close(self):
        pass


PARTITION = Partition(
    backend="cpu",
    triple="x86_64-unknown-linux-gnu",
    mcpu="x86-64-v4",
    features=("avx2",),
    device={},
    chip="test",
    cores=2,
    caches=(),
    tvm="0",
    tvm_ffi="0",
)


@pytest.fixture
def session(tmp_path):
    """`session(cost)`: a session over that measurer, in a cache of this test's own."""

    def make(cost, *, model=None, budget=None, seed=0, heard=None, partition=PARTITION):
        measurer = cost if isinstance(cost, FakeMeasurer) else FakeMeasurer(cost)
        return Session(
            partition=partition,
            store=RecordStore(tmp_path),
            measurer=measurer,
            model=model or NoModel(),
            memory=Memory.open(tmp_path, partition),
            budget=budget or Budget(),
            seed=seed,
            listener=(heard.append if heard is not None else lambda _: None),
        )

    return make


def tasks(*some):
    """All there is."""
    return Tasks(some, ())
