"""Counting cores, against a made-up /sys and a made-up sysctl."""

import os
import sys
from pathlib import Path

import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.runtime import host
from mlc_compile.runtime.host import Told

BIG_LITTLE = dict.fromkeys(range(4), 400) | dict.fromkeys(range(4, 8), 1024)


def sys_with(tmp_path: Path, siblings: dict[int, str], quota: str = "max 100000") -> Told:
    for cpu, text in siblings.items():
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text(quota + "\n")
    return Told(tmp_path)


def intel(tmp_path: Path, performance: str, siblings: dict[int, str]) -> Told:
    """Some of its cores are performance cores."""
    (tmp_path / "devices/cpu_core").mkdir(parents=True)
    (tmp_path / "devices/cpu_core/cpus").write_text(performance + "\n")
    return sys_with(tmp_path, siblings)


def arm(tmp_path: Path, capacity: dict[int, int]) -> Told:
    """Its CPUs have capacities."""
    for cpu, number in capacity.items():
        directory = tmp_path / f"devices/system/cpu/cpu{cpu}"
        directory.mkdir(parents=True)
        (directory / "cpu_capacity").write_text(f"{number}\n")
    return Told(tmp_path)


def apple(tmp_path: Path, **numbers: int) -> Told:
    """It tells numbers by name."""
    return Told(tmp_path, lambda name: numbers.get(name.replace(".", "_"), 0))


def allow(monkeypatch: pytest.MonkeyPatch, cpus: range) -> None:
    monkeypatch.setattr(host, "_allowed_cpus", lambda: frozenset(cpus))


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, range(4))


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("siblings", "quota", "cores"),
    [
        pytest.param({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, "max 100000", 2, id="threads"),
        pytest.param({i: str(i) for i in range(4)}, "max 100000", 4, id="no hyper-threading"),
        pytest.param({}, "max 100000", 4, id="kernel tells nothing"),
        pytest.param({}, "150000 100000", 2, id="one and a half CPUs granted"),
        pytest.param({}, "10000 100000", 1, id="a tenth granted"),
        pytest.param({}, "unreadable", 4, id="no quota known"),
    ],
)
def test_cores_are_physical_and_within_the_quota(
    tmp_path: Path, siblings: dict[int, str], quota: str, cores: int
) -> None:
    assert host.available_cores(sys_with(tmp_path, siblings, quota)) == cores


def test_only_allowed_cpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_allowed_cpus", lambda: frozenset({1, 3}))
    assert host.available_cores(sys_with(tmp_path, {1: "1,3", 3: "1,3"})) == 1


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [(range(8), 2), (range(4), 2), (range(2), 1), (range(3, 8), 1), (range(5, 8), 3)],
)
def test_intel_s_performance_cores_count_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: range, cores: int
) -> None:
    """Two of two threads each and four others; those count where no performance core is ours."""
    allow(monkeypatch, cpus)
    threads = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    told = intel(tmp_path, "0-1,2-3", threads | {i: str(i) for i in range(4, 8)})
    assert host.available_cores(told) == cores


@pytest.mark.parametrize(
    ("capacity", "cores"),
    [
        pytest.param(BIG_LITTLE, 4, id="big and little"),
        pytest.param({0: 325, 1: 325, 2: 325, 3: 800, 4: 800, 5: 870, 6: 870, 7: 1024}, 5, id="3"),
        pytest.param({i: 523 if i < 4 else 1024 for i in range(8)}, 4, id="a little over half"),
        pytest.param(dict.fromkeys(range(8), 1024), 8, id="all alike"),
        pytest.param({0: 1024}, 1, id="the others do not tell"),
    ],
)
def test_cores_of_a_capacity_near_the_largest_count_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: dict[int, int], cores: int
) -> None:
    allow(monkeypatch, range(8))
    assert host.available_cores(arm(tmp_path, capacity)) == cores


def test_macos_tells_how_many_cores_are_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, range(10))
    assert host.available_cores(apple(tmp_path, hw_perflevel0_physicalcpu=8)) == 8
    assert host.available_cores(apple(tmp_path)) == 10


@pytest.mark.parametrize(
    ("cpus", "threads", "bound"),
    [
        pytest.param(range(8), 4, {4, 5, 6, 7}, id="one a core"),
        pytest.param(range(8), 2, {4, 5, 6, 7}, id="fewer"),
        pytest.param(range(8), 5, None, id="more than there are"),
        pytest.param(range(8), 1, None, id="waits for no other"),
        pytest.param(range(6), 2, {4, 5}, id="within the mask"),
        pytest.param(range(4), 4, None, id="no fast one is ours"),
        pytest.param(range(4, 6), 2, None, id="already"),
    ],
)
def test_threads_keep_to_the_fast_cores_if_those_are_enough(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: range,
    threads: int,
    bound: set[int] | None,
) -> None:
    allow(monkeypatch, cpus)
    calls: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call), raising=False)
    host.keep_to_fast_cores(threads, arm(tmp_path, BIG_LITTLE))
    assert calls == ([] if bound is None else [(0, bound)])


def test_more_threads_than_cpus_are_refused_with_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "_allowed_cpus", lambda: frozenset({3, 5}))
    host.require_threads(2)
    host.require_threads(None)
    with pytest.raises(ConfigError, match="--threads 3, but this machine lets us use 2 cores") as e:
        host.require_threads(3)
    assert e.value.hint == "at most 2"
    monkeypatch.setattr(host, "_allowed_cpus", lambda: frozenset({0}))
    with pytest.raises(ConfigError, match=r"lets us use 1 core$"):
        host.require_threads(2)


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    assert host.last_level_cache(tmp_path) == 0
    for index, size in enumerate(("48K", "2048K", "32M", "odd")):
        directory = tmp_path / f"devices/system/cpu/cpu0/cache/index{index}"
        directory.mkdir(parents=True)
        (directory / "size").write_text(size + "\n")
    assert host.last_level_cache(tmp_path) == 32 << 20
