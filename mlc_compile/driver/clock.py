"""How long the stages of a job take, told to the listener as they begin."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mlc_compile.progress import Progress


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds per stage, in the order in which the stages first ran."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Tell of the stage and time it."""
        self.progress.step(name)
        with self.timed(name):
            yield

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a stage that tells of itself."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
