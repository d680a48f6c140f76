"""Build the candidates of a task side by side, a library each; processes of their own do it."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from mlc_compile.errors import last_line
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import Target
from mlc_compile.tune.builder import Build, Built
from mlc_compile.tune.measure import BUILD_SECONDS, BUILDER, Failed
from mlc_compile.tune.worker import FORESEEN, Trouble, Worker

if TYPE_CHECKING:
    from mlc_compile.tune.tasks import Task


@dataclass(slots=True)
class Workshop:
    """Builders, by default one for each core of this machine.

    What they build, and all that they put aside meanwhile, goes to `place`: whoever made that
    removes it, and nothing else of them stays when they are killed.
    """

    target: Target
    place: Path
    build_seconds: float = BUILD_SECONDS
    builders: tuple[Worker, ...] = ()
    _count: Iterator[int] = field(default_factory=itertools.count)
    _defaults: dict[str, Path] = field(default_factory=dict)  # by task: libraries of candidate 0

    def __post_init__(self) -> None:
        """Nothing is started yet."""
        if not self.builders:
            cores = range(available_cores())
            self.builders = tuple(Worker(BUILDER, threads=1, room=self.place) for _ in cores)

    def build(
        self, task: "Task", points: Sequence[Any]
    ) -> tuple[Path | Failed, list[Path | Failed]]:
        """The library of the task's default, which stays here, and one of each point."""
        known = self._defaults.get(task.name)
        wanted = [*points] if known else [task.family.space.default, *points]
        built = self._build_all(task, wanted)
        default = known or built.pop(0)
        if isinstance(default, Path):
            self._defaults[task.name] = default
        return default, built

    def close(self) -> None:
        """Kill the processes."""
        for worker in self.builders:
            worker.close()

    def _build_all(self, task: "Task", points: Sequence[Any]) -> list[Path | Failed]:
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.builders:
            free.put(worker)
        with ThreadPoolExecutor(len(self.builders)) as pool:
            try:
                jobs = [pool.submit(self._build, free, p, _function(task, p)) for p in points]
                return [job.result() for job in jobs]
            except BaseException:  # an interrupt: what is being built is of no more use
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in self.builders:
                    worker.close()
                raise

    def _build(
        self, free: "SimpleQueue[Worker]", point: Any, function: str | Failed
    ) -> Path | Failed:
        if isinstance(function, Failed):
            return function
        row = msgspec.Raw(msgspec.json.encode(self.target))
        out = self.place / f"{next(self._count)}.so"
        worker = free.get()
        try:
            worker.ask(Build(function, row, str(out)), Built, self.build_seconds)
        except Trouble as e:
            return Failed(point, f"build {e.kind}", str(e))
        finally:
            free.put(worker)
        return out


def _function(task: "Task", point: Any) -> str | Failed:
    """TVM's JSON of the kernel at a point."""
    import tvm

    try:
        text = str(tvm.ir.save_json(task.family.build(point)))
    except FORESEEN as e:
        return Failed(point, "schedule", f"{type(e).__name__}: {last_line(str(e), 'no reason')}")
    return text
