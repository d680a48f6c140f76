"""What was measured on a target, kept for the cost model of the next run.

    CACHE/samples/<format>/<digest of the partition>.jsonl    a sample a line, the latest last

It only makes tuning faster: what cannot be read is left out, what cannot be written is lost.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.records import Partition, Workload
from mlc_compile.tune.cost_model import MOST_SAMPLES, Sample

FORMAT: Final = "1"


@dataclass(slots=True)
class Memory:
    """The samples of one partition; `directory` None: of this run alone."""

    path: Path | None
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def open(cls, cache_dir: Path, partition: Partition) -> "Memory":
        """What is left of earlier runs."""
        path = cache_dir / "samples" / FORMAT / f"{partition.digest}.jsonl"
        return cls(path, list(_read(path)))

    def of(self, family: str) -> list[Sample]:
        """The latest samples of a family."""
        return [s for s in self.samples if s.family == family][-MOST_SAMPLES:]

    def about(self, workload: Workload, space: int) -> list[Sample]:
        """Those of one workload in one version of its space."""
        wanted = (workload.digest, space)
        return [s for s in self.samples if (s.workload, s.space) == wanted]

    def add(self, samples: Iterable[Sample]) -> None:
        """Remember, also on the disk while that takes it."""
        new = list(samples)
        self.samples += new
        if self.path is None:
            return
        # A line that a kill left half-written ends before the next one begins.
        lines = b"".join(b"\n" + msgspec.json.encode(sample) for sample in new)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(lines)
        except OSError:
            self.path = None


def _read(path: Path) -> Iterator[Sample]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in filter(None, lines):
        with suppress(msgspec.DecodeError):
            sample = msgspec.json.decode(line, type=Sample)
            if math.isfinite(sample.cost) and sample.cost > 0:
                yield sample
