"""The records that a build uses: of each workload the fastest that beat its default."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mlc_compile.records.record import Record, Workload, canonical


@dataclass(frozen=True, slots=True)
class Chosen:
    """A snapshot of one partition: at most one record for a workload and space."""

    records: tuple[Record, ...] = ()

    def find(self, workload: Workload, space: int) -> Record | None:
        """The record to use; None: the rules' default."""
        wanted = (workload, space)
        return next((r for r in self.records if (r.workload, r.space) == wanted), None)

    def outdated(self, workload: Workload, space: int) -> bool:
        """Whether there are records of the workload, and all are of other spaces."""
        spaces = {r.space for r in self.records if r.workload == workload}
        return bool(spaces) and space not in spaces

    def about(self, workloads: Collection[Workload]) -> "Chosen":
        """Those of `workloads` alone: all that who asks for these will ever be told."""
        return Chosen(tuple(r for r in self.records if r.workload in workloads))

    @property
    def digests(self) -> dict[str, str]:
        """Of each workload that has a record: its title -> the digest of what was chosen."""
        titled = defaultdict[str, list[Record]](list)
        for record in self.records:
            titled[record.workload.title].append(record)
        return {title: Chosen(tuple(some)).digest for title, some in titled.items()}

    @property
    def digest(self) -> str:
        """sha256 of what was chosen; empty where nothing was, as for a target never tuned."""
        if not self.records:
            return ""
        return hashlib.sha256(canonical(self.records)).hexdigest()


NOTHING: Final = Chosen()


def choose(records: Iterable[Record]) -> Chosen:
    """The fastest of each workload and space; of equals always the same, whatever the order."""
    best: dict[tuple[Workload, int], Record] = {}
    for record in sorted(records, key=lambda one: (one.microseconds, canonical(one))):
        if record.wins:
            best.setdefault((record.workload, record.space), record)
    ordered = sorted(best.values(), key=lambda one: (one.workload.digest, one.space))
    return Chosen(tuple(ordered))
