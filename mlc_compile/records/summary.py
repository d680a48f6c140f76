"""What a record store holds, for people: a row for each target that was tuned."""

from dataclasses import dataclass

from mlc_compile.records.chosen import choose
from mlc_compile.records.store import Loaded, RecordStore


@dataclass(frozen=True, slots=True)
class Summary:
    """One partition: its digest and title, and counts of what it has.

    `chosen` are the workloads for which a record beat the default, `best_speedup` is the most
    that one did; None where none did.
    """

    partition: str
    title: str
    workloads: int
    records: int
    chosen: int
    best_speedup: float | None
    damaged: int


def summarize(store: RecordStore) -> tuple[Summary, ...]:
    """A row for each partition, by title."""
    return tuple(sorted(map(_summary, store.all()), key=lambda one: (one.title, one.partition)))


def _summary(held: Loaded) -> Summary:
    chosen = choose(held.records).records
    return Summary(
        partition=held.digest,
        title=held.partition.title if held.partition else f"a target unknown ({held.digest[:12]})",
        workloads=len({record.workload for record in held.records}),
        records=len(held.records),
        chosen=len(chosen),
        best_speedup=max((record.speedup for record in chosen), default=None),
        damaged=len(held.dropped),
    )
