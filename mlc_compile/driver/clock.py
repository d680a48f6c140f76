"""How long the stages of a job take, told to the listener as they begin."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mlc_compile.progress import Progress


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds per stage, in the order in which the stages first ran, and of the passes of one."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    passes: dict[str, dict[str, float]] = field(default_factory=dict)  # by phase, then by pass

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

    def add_pass(self, phase: str, name: str, seconds: float) -> None:
        """Count what one pass took; several libraries add up."""
        known = self.passes.setdefault(phase, {})
        known[name] = known.get(name, 0.0) + seconds
