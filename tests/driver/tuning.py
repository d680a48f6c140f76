"""Tuning, stood in for by what it would leave in the record store."""

from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.target import find_target


def record(tile: int = 1, took: float = 5.0) -> Record:
    """A record with that parameter; its default took 10 microseconds."""
    return Record(
        workload=Workload.of("cpu.int8_gemm", n=64),
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
