"""Time every kernel of one artifact with one number of threads: a `Job` in, `Samples` out.

Run by `bench.kernels` as `python -m mlc_compile.bench.kernel_worker`.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from mlc_compile.bench.child import serve
from mlc_compile.bench.kernels import KernelSample, ProfileSample, Samples
from mlc_compile.bench.speed import Job
from mlc_compile.bench.traffic import AddressBook, Tensor, Traffic
from mlc_compile.bench.worker import Workload, workloads
from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.load import check_artifact
from mlc_compile.runtime.vm import CompiledModel, Watcher, start_tvm

# What the virtual machine does itself: builtins, and the arithmetic of symbolic shapes.
OVERHEAD: Final = ("vm.", "shape_func")


def answer() -> Samples:
    """Do the job on stdin."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    loadable = check_artifact(Path(job.directory))
    start_tvm(job.threads)
    model = CompiledModel(loadable)
    engine = Engine(model, loadable.manifest.limits, loadable.manifest.vocab_size)
    book = AddressBook.of(loadable.manifest, model.weights, model.pages)
    watched = Watched(engine, model, book)
    return Samples(tuple(watched.profile(w, job) for w in workloads(engine, job.plan)))


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine whose library can be watched at work."""

    engine: Engine
    model: CompiledModel
    book: AddressBook

    def profile(self, workload: Workload, job: Job) -> ProfileSample:
        """Alternate watched and unwatched runs, so that a slow minute slows both."""
        depth = self.engine.length
        census = Census(self.book, self.engine)
        self._run(workload, census)
        plain: list[float] = []
        watched: list[Stopwatch] = []
        seconds: list[float] = []
        for _ in range(job.plan.warm_up + job.plan.repeats):
            plain.append(self._run(workload, None))
            watched.append(Stopwatch())
            seconds.append(self._run(workload, watched[-1]))
        units = workload.tokens if workload.phase == "decode" else 1
        counted = slice(job.plan.warm_up, None)
        return ProfileSample(
            phase=workload.phase,
            tokens=workload.tokens,
            depth=depth,
            seconds=statistics.median(plain[counted]) / units,
            watched_seconds=statistics.median(seconds[counted]) / units,
            kernels=tuple(census.samples(watched[counted], units)),
        )

    def _run(self, workload: Workload, watcher: Watcher | None) -> float:
        depth = self.engine.length
        self.model.watch(watcher)
        start = perf_counter()
        workload.run()
        seconds = perf_counter() - start
        self.model.watch(None)
        self.engine.rewind(depth)
        return seconds


@dataclass(slots=True)
class Census:
    """Notes of each kernel what its calls move and compute."""

    book: AddressBook
    engine: Engine
    calls: dict[str, list[Traffic]] = field(default_factory=lambda: defaultdict(list))

    def __call__(
        self, _function: object, name: str, before: bool, _result: object, *arguments: object
    ) -> int:
        if before and not name.startswith(OVERHEAD):
            tensors = [a for a in arguments if isinstance(a, Tensor)]
            self.calls[name].append(self.book.traffic(name, tensors, self.engine.length))
        return 0

    def samples(self, watched: "list[Stopwatch]", units: int) -> Iterator[KernelSample]:
        """Each kernel's part of one unit, its time the median of the watched runs."""
        for name, calls in self.calls.items():
            yield KernelSample(
                name=name,
                weights=tuple(sorted(frozenset().union(*(c.weights for c in calls)))),
                integers=any(c.integers for c in calls),
                calls=len(calls) / units,
                seconds=statistics.median(w.seconds(name) for w in watched) / units,
                nbytes=sum(c.nbytes for c in calls) // units,
                multiply_adds=sum(c.multiply_adds for c in calls) // units,
            )


@dataclass(slots=True)
class Stopwatch:
    """Adds up the time between being told of a call's begin and of its end.

    Some of that is the telling itself: as much as the shortest call of all, a builtin that
    does nothing, takes.
    """

    total: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    telling: float = float("inf")
    started: float = 0.0
    clock: Callable[[], float] = perf_counter

    def __call__(
        self, _function: object, name: str, before: bool, _result: object, *_arguments: object
    ) -> int:
        if before:
            self.started = self.clock()
            return 0
        elapsed = self.clock() - self.started
        self.total[name] += elapsed
        self.count[name] += 1
        self.telling = min(self.telling, elapsed)
        return 0

    def seconds(self, name: str) -> float:
        """Of all calls of `name`."""
        return self.total[name] - self.count[name] * self.telling


if __name__ == "__main__":
    serve(answer)
