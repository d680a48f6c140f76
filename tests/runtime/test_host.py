"""Counting cores, against a made-up /sys."""

from pathlib import Path

import pytest

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
