"""Tuning, stood in for by what it would leave in the record store."""

from pathlib import Path

import msgspec

from mlc_compile.cache import Store
from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import find_target


def record(tile: int = 1, took: float = 5.0, n: int = 64) -> Record:
    """A record with that parameter; its default took 10 microseconds."""
    return Record(
        workload=Workload.of("cpu.int8_gemm", n=n),
        space=1,
        choice={"tile": tile},
        microseconds=took,
        default_microseconds=10.0,
        noise=0.02,
        trials=8,
        seed=0,
    )


def tune(store: RecordStore, target: str, *records: Record) -> None:
    """Leave records for a target as tuning here would."""
    store.append(partition_of(find_target(target), available_cores()), records)


def asked(cache: Path, family: str) -> Workload:
    """A workload of that family of which the one library in a cache was seen to ask."""
    (held,) = [one for one in Store(cache).held() if one.entry.key.level == "questions"]
    text = (held.directory / "files" / "questions.json").read_bytes()
    ((_library, workloads),) = msgspec.json.decode(text, type=dict[str, list[Workload]]).items()
    return next(one for one in workloads if one.family == family)
