"""Tuning records: what was measured to be the fastest for one kernel on one target.

    CACHE/records/<format>/<digest of the partition>.jsonl

A partition is all that makes a measurement worthless elsewhere: instruction set, cores, caches,
GPU, TVM version. Its file names it and holds one sealed record a line; lines are only added,
and whatever happens to one of them the others count.
"""

from mlc_compile.records.chosen import NOTHING, Chosen, choose
from mlc_compile.records.partition import Partition, partition_of
from mlc_compile.records.record import Choice, Record, Workload
from mlc_compile.records.store import Dropped, Loaded, RecordStore, Refused

__all__ = [
    "NOTHING",
    "Choice",
    "Chosen",
    "Dropped",
    "Loaded",
    "Partition",
    "Record",
    "RecordStore",
    "Refused",
    "Workload",
    "choose",
    "partition_of",
]
