"""Measure on this machine: build candidates side by side, then time them one by one.

Builders and the runner are processes of their own (`worker`): a candidate that hangs, crashes
or computes something else costs one error, and is never a record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_compile.tune.measure import (
    GAUGE_SECONDS,
    PREPARE_SECONDS,
    QUICK,
    RUN_SECONDS,
    RUNNER,
    THOROUGH,
    Failed,
    Outcome,
    joined,
)
from mlc_compile.tune.runner import Compare, Compared, Gauge, Gauged, Prepare, Prepared
from mlc_compile.tune.worker import Trouble, Worker
from mlc_compile.tune.workshop import Workshop

if TYPE_CHECKING:
    from mlc_compile.tune.tasks import Task


@dataclass(slots=True)
class LocalMeasurer:
    """Builders, and one runner that has the machine to itself."""

    workshop: Workshop
    run_seconds: float = RUN_SECONDS
    runner: Worker = field(default_factory=lambda: Worker(RUNNER))
    _prepared: tuple[str, int] = ("", 0)  # the runner's task, and which process it told
    _calls: float = 0.0  # seconds of one call of the default in each situation

    def measure(self, task: "Task", points: Sequence[Any], *, thorough: bool) -> Iterator[Outcome]:
        """Build all points, then check and time each beside the default."""
        default, built = self.workshop.build(task, points)
        if isinstance(default, Failed):
            yield from (Failed(point, default.kind, default.reason) for point in points)
            return
        for point, library in zip(points, built, strict=True):
            if isinstance(library, Failed):
                yield library
                continue
            asked = Compare(str(library), *(THOROUGH if thorough else QUICK))
            yield self._run(task, point, default, asked)
            library.unlink(missing_ok=True)

    def bandwidth(self) -> float | None:
        """Of this machine."""
        try:
            return self.runner.ask(Gauge(), Gauged, GAUGE_SECONDS).bytes_s
        except Trouble:
            return None

    def close(self) -> None:
        """Kill the processes."""
        self.runner.close()
        self.workshop.close()

    def _run(self, task: "Task", point: Any, default: Path, asked: Compare) -> Outcome:
        try:
            self._prepare(task, default)
            # Four pairs of a hopeless candidate, which may be far slower, end in this too.
            expected = asked.seconds + self._calls * 40 * asked.pairs
            found = self.runner.ask(asked, Compared, self.run_seconds + expected)
        except Trouble as e:
            return Failed(point, f"run {e.kind}", str(e))
        if found.wrong:
            return Failed(point, "wrong result", found.wrong)
        return joined(point, found.timings, [s.weight for s in task.situations])

    def _prepare(self, task: "Task", default: Path) -> None:
        """Have the runner take the task in hand, unless the same process has it already."""
        self.runner.warm()
        if self._prepared == (task.name, self.runner.starts):
            return
        question = Prepare(str(default), task.situations)
        calm = self.runner.ask(question, Prepared, PREPARE_SECONDS)
        self._calls = 1e-6 * sum(calm.microseconds)
        self._prepared = task.name, self.runner.starts
