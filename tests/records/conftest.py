"""Records of a kernel that nobody has, and a store for them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_compile.records import Partition, Record, RecordStore, Workload, partition_of
from mlc_compile.target import find_target


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    """`record(3, n=64)`: parameter 3 for a workload of such facts, twice as fast as the default."""

    def make(tile: int = 1, *, n: int = 64, **changed: object) -> Record:
        fields = {
            "workload": Workload.of("gemm", n=n),
            "space": 1,
            "choice": {"tile": tile},
            "microseconds": 10.0 + tile,
            "default_microseconds": 2 * (10.0 + tile),
            "noise": 0.02,
            "trials": 8,
            "seed": 0,
        }
        return Record(**{**fields, **changed})

    return make


@pytest.fixture(scope="session")
def here() -> Partition:
    """The partition of a preset, equal on every machine."""
    return partition_of(find_target("cpu-x86-64-v3"), cores=2)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    """An empty store."""
    return RecordStore(tmp_path / "cache")
