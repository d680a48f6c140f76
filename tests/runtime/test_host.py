"""Counting cores, against a made-up /sys."""

from pathlib import Path

import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.runtime import host


def sys_with(tmp_path: Path, siblings: dict[int, str], quota: str = "max 100000") -> Path:
    for cpu, text in siblings.items():
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text(quota + "\n")
    return tmp_path


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_allowed_cpus", lambda: frozenset(range(4)))


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
