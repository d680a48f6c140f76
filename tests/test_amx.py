"""Leave to use AMX: asked of Linux once a process, and what follows where it is refused."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import archspec.cpu
import archspec.cpu.detect
import pytest

from mlc_compile import amx
from mlc_compile import target as targets
from mlc_compile.runtime import vm
from mlc_compile.target import BF16_TILE_FEATURES, cpu_features, find_target, missing_features

# archspec leaves float16 out of its list.
FEATURES = archspec.cpu.TARGETS["sapphirerapids"].features | {"avx512_fp16"}
CPUINFO = Path("/proc/cpuinfo")


@pytest.fixture
def kernel(monkeypatch):
    """`kernel(0)`: Linux that answers so; the list that it gives has what it was asked."""

    def answering(result, system="Linux", machine="x86_64"):
        asked = []

        def syscall(*numbers):
            asked.append(tuple(n.value for n in numbers))
            return result

        libc = SimpleNamespace(syscall=syscall)
        monkeypatch.setattr(ctypes, "CDLL", lambda _name: libc)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        amx.tiles_granted.cache_clear()
        return asked

    yield answering
    amx.tiles_granted.cache_clear()


@pytest.mark.parametrize(("result", "granted"), [(0, True), (-1, False)])
def test_linux_is_asked_once_by_arch_prctl(kernel, result, granted):
    asked = kernel(result)
    assert amx.tiles_granted() is granted
    assert amx.tiles_granted() is granted
    assert asked == [(158, 0x1023, 18)]


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "x86_64"), ("Windows", "AMD64"), ("Linux", "aarch64")]
)
def test_others_are_not_asked(kernel, system, machine):
    asked = kernel(0, system, machine)
    assert not amx.tiles_granted()
    assert asked == []


@pytest.fixture
def intel(monkeypatch):
    """`intel(granted=True)`: this process runs on a Sapphire Rapids."""

    def pretend(*, granted):
        found = SimpleNamespace(name="sapphirerapids", features=FEATURES)
        monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: found)
        monkeypatch.setattr(targets, "tiles_granted", lambda: granted)

    return pretend


def test_tiles_that_are_granted_are_features(intel):
    intel(granted=True)
    assert cpu_features() == FEATURES
    assert missing_features(find_target("cpu-sapphirerapids").requires) == ()


def test_tiles_that_are_refused_are_missing_by_name(intel):
    intel(granted=False)
    required = find_target("cpu-sapphirerapids").requires
    assert missing_features(required) == BF16_TILE_FEATURES
    assert cpu_features() == FEATURES - {"amx_bf16", "amx_int8", "amx_tile"}


def test_a_cpu_without_tiles_asks_for_none(monkeypatch):
    def ask():
        raise AssertionError

    plain = archspec.cpu.TARGETS["icelake"]
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: plain)
    monkeypatch.setattr(targets, "tiles_granted", ask)
    assert cpu_features() == plain.features


def test_whoever_starts_the_runtime_asks_before_all_else(monkeypatch):
    """Workers that time kernels look at no manifest, and so at no features."""

    class Asked(Exception):
        pass

    def ask():
        raise Asked

    monkeypatch.setattr(vm, "tiles_granted", ask)
    with pytest.raises(Asked):
        vm.start_tvm()


def test_a_program_of_its_own_is_told_as_this_one_is():
    """Leave does not outlive exec; each process asks for itself."""
    if not CPUINFO.is_file() or "amx_tile" not in CPUINFO.read_text().split():
        pytest.skip("this CPU has no amx_tile")
    here = amx.tiles_granted()
    program = "from mlc_compile.amx import tiles_granted; print(tiles_granted())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert child.stdout.decode().strip() == str(here)
    assert ("amx_tile" in cpu_features()) is here
