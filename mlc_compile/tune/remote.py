"""Measure on other machines: build here, time there, as many at once as a tracker has free.

What is asked is what `measure` asks a runner of its own: pairs, warm-up, cold weights and
checks are one code. A device that goes away costs no candidate: another one takes it.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mlc_compile.emit.link.linker import find_linker
from mlc_compile.records import Partition
from mlc_compile.tune.measure import QUICK, THOROUGH, Failed, Outcome, joined
from mlc_compile.tune.result import TuneResult
from mlc_compile.tune.rpc.fleet import Fleet
from mlc_compile.tune.rpc.runner_at import Lost, RemoteRunner
from mlc_compile.tune.rpc.tracker import Address
from mlc_compile.tune.runner import Compare
from mlc_compile.tune.worker import Trouble
from mlc_compile.tune.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlc_compile.tune.tasks import Task

MOST_DEVICES: Final = 2  # that one candidate may take down; then it is what failed


@dataclass(frozen=True, slots=True)
class Remote:
    """Where to measure: devices of a key, which a tracker knows."""

    tracker: Address
    key: str


@dataclass(slots=True)
class RemoteMeasurer:
    """Devices that time, and this machine's builders. It ends in TargetError without a device."""

    fleet: Fleet
    workshop: Workshop

    @classmethod
    def open(
        cls, workshop: Workshop, remote: Remote, say: "Callable[[str], None]"
    ) -> "RemoteMeasurer":
        """Take the devices; TargetError in seconds where there are none that will do.

        Also where this machine cannot link for them.
        """
        find_linker(workshop.target)
        fleet = Fleet(workshop.target, remote.tracker, remote.key, say)
        try:
            fleet.open()
        except BaseException:
            fleet.close()
            raise
        return cls(fleet, workshop)

    @property
    def partition(self) -> Partition:
        """Where what is measured holds."""
        return self.fleet.partition()

    def measure(self, task: "Task", points: Sequence[Any], *, thorough: bool) -> Iterator[Outcome]:
        """An outcome for each point, in order; all that is there before devices are gone."""
        default, built = self.workshop.build(task, points)
        if isinstance(default, Failed):
            yield from (Failed(point, default.kind, default.reason) for point in points)
            return
        self.fleet.look()
        asked = Compare("", *(THOROUGH if thorough else QUICK))
        race = Race(self.fleet, task, default, asked)
        for number, (point, library) in enumerate(zip(points, built, strict=True)):
            race.add(Job(number, point, library))
        yield from race.outcomes()

    def bandwidth(self) -> float | None:
        """Of the first device that is still there: all are one kind."""
        for runner in self.fleet.runners:
            with suppress(Lost, Trouble):
                return runner.bandwidth()
        return None

    def counted(self, result: TuneResult) -> TuneResult:
        """A run's result, with the devices that were lost in it or left out."""
        lost, reasons = self.fleet.lost, self.fleet.reasons
        errors = {**result.errors, **({"device lost": lost} if lost else {})}
        return msgspec.structs.replace(result, errors=errors, notes=(*result.notes, *reasons))

    def close(self) -> None:
        """Let go of the devices and of the builders."""
        self.fleet.close()
        self.workshop.close()


@dataclass(slots=True)
class Job:
    """A candidate; `tries` counts devices that went away while they had it."""

    number: int
    point: Any
    library: Path | Failed
    tries: int = 0


@dataclass(slots=True)
class Race:
    """Candidates that the fleet's runners share: each takes the next when it is done with one."""

    fleet: Fleet
    task: "Task"
    default: Path
    asked: Compare
    todo: deque[Job] = field(default_factory=deque)
    done: dict[int, Outcome] = field(default_factory=dict)
    count: int = 0
    unsettled: int = 0  # of them, without an outcome yet
    running: int = 0  # runners that may still bring something
    over: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, job: Job) -> None:
        """Before the start."""
        self.count += 1
        if isinstance(job.library, Failed):
            self.done[job.number] = job.library
        else:
            self.todo.append(job)
            self.unsettled += 1

    def outcomes(self) -> Iterator[Outcome]:
        """In order, as they come; TargetError where no runner is left to bring the next."""
        runners = list(self.fleet.runners)
        self.running = len(runners)
        with ThreadPoolExecutor(len(runners)) as pool:
            try:
                threads = [pool.submit(self._run, runner) for runner in runners]
                for number in range(self.count):
                    outcome = self._wait_for(number)
                    if outcome is None:
                        for thread in threads:
                            thread.result()
                        raise self.fleet.gone()
                    yield outcome
            except KeyboardInterrupt:  # what is being timed is of no more use
                self._stop()
                self.fleet.close()
                raise
            finally:
                self._stop()

    def _wait_for(self, number: int) -> Outcome | None:
        with self.changed:
            self.changed.wait_for(lambda: number in self.done or not self.running)
            return self.done.pop(number, None)

    def _stop(self) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def _run(self, runner: RemoteRunner) -> None:
        """One runner's thread: until nothing is left, or the runner is lost."""
        try:
            while (job := self._next()) is not None:
                try:
                    self._settle(job, self._outcome(runner, job))
                except Lost as e:
                    self._give_back(job, runner, str(e))
                    return
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    def _next(self) -> Job | None:
        """The next candidate; one that another runner has may come back, so that is waited for."""
        with self.changed:
            self.changed.wait_for(lambda: self.todo or self.over or not self.unsettled)
            return None if self.over or not self.todo else self.todo.popleft()

    def _outcome(self, runner: RemoteRunner, job: Job) -> Outcome:
        assert isinstance(job.library, Path)
        try:
            found = runner.compare(self.task, self.default, job.library, self.asked)
        except Trouble as e:
            return Failed(job.point, f"run {e.kind}", str(e))
        if found.wrong:
            return Failed(job.point, "wrong result", found.wrong)
        weights = [situation.weight for situation in self.task.situations]
        return joined(job.point, found.timings, weights)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        assert isinstance(job.library, Path)
        job.library.unlink(missing_ok=True)
        with self.changed:
            self.unsettled -= 1
            self.done[job.number] = outcome
            self.changed.notify_all()

    def _give_back(self, job: Job, runner: RemoteRunner, reason: str) -> None:
        with self.changed:
            if self.over:
                return
            self.fleet.lose(runner, reason)
            job.tries += 1
            if job.tries < MOST_DEVICES:
                self.todo.appendleft(job)
                self.changed.notify_all()
                return
        self._settle(job, Failed(job.point, "run lost", reason))
