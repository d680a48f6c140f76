"""The runtime's objects are compiled once for the same sources, flags and zig, and no more."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlc_compile.emit.wasm import runtime
from mlc_compile.errors import TargetError
from mlc_compile.staging import lock


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The units that were compiled, by a zig that copies its source, in a cache of their own."""
    units = []

    def run_tool(command, room, out, _failure, _hint):
        units.append(out.name)
        assert all(str(room) not in word for word in command)  # no path may get into an object
        (room / out.name).write_bytes((room / command[-1]).read_bytes())

    monkeypatch.setattr(runtime, "run_tool", run_tool)
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig"))
    return units


NAMES = [f"{unit.name}.o" for unit in runtime.UNITS]


def test_objects_are_compiled_once(compiled):
    first = runtime.runtime_objects()
    assert [Path(path).name for path in first] == compiled == NAMES
    assert runtime.runtime_objects() == first
    assert compiled == NAMES


def test_a_build_at_the_same_time_waits_for_the_first(compiled, monkeypatch):
    waits, copy, acquire = threading.Event(), runtime.run_tool, lock.acquire

    def noted(path):
        handle = acquire(path, wait=False)
        if handle is None:
            waits.set()
            return acquire(path)
        return handle

    def begin_another(*arguments):
        if not others:
            others.append(pool.submit(runtime.runtime_objects))
            assert waits.wait(60)
        copy(*arguments)

    monkeypatch.setattr(lock, "acquire", noted)
    monkeypatch.setattr(runtime, "run_tool", begin_another)
    others = []
    with ThreadPoolExecutor() as pool:
        first = runtime.runtime_objects()
        (other,) = others
        assert other.result(60) == first
    assert compiled == NAMES


def test_a_file_system_without_locks_costs_no_build(compiled, monkeypatch):
    def refuse(_path):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(lock, "acquire", refuse)
    assert runtime.runtime_objects() == runtime.runtime_objects()
    assert compiled == NAMES


def test_another_zig_compiles_anew(compiled, monkeypatch):
    first = runtime.runtime_objects()
    monkeypatch.setattr(runtime, "installed", lambda _name: "0.99.0")
    assert set(runtime.runtime_objects()).isdisjoint(first)
    assert compiled == 2 * NAMES


@pytest.mark.parametrize("damage", [b"", None], ids=["emptied", "removed"])
def test_a_damaged_object_is_compiled_anew(compiled, damage):
    first = runtime.runtime_objects()
    whole = [Path(path).read_bytes() for path in first]
    if damage is None:
        Path(first[0]).unlink()
    else:
        Path(first[0]).write_bytes(damage)
    assert runtime.runtime_objects() == first
    assert [Path(path).read_bytes() for path in first] == whole
    assert compiled == 2 * NAMES


def test_what_no_library_needs_is_left_out_of_the_pack(compiled):
    pack = Path(runtime.runtime_objects()[0]).read_text()
    assert '#include "src/runtime/vm/paged_kv_cache.cc"' in pack
    included = [line for line in pack.splitlines() if line.startswith("#include")]
    assert not [line for line in included for part in runtime.LEFT_OUT if part in line]


@pytest.mark.parametrize("folder", ["src/runtime", "web/emcc"])
def test_a_wheel_without_the_sources_is_told_in_a_sentence(monkeypatch, tmp_path, folder):
    for package, there, _ in runtime.TAKEN:
        (tmp_path / package / there).mkdir(parents=True, exist_ok=True)
    (tmp_path / "tvm" / runtime.PACK).write_text("")
    monkeypatch.setattr(runtime, "_package", lambda name: tmp_path / name)
    runtime.require_sources()
    (tmp_path / "tvm" / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="apache-tvm has no sources of the WebAss") as error:
        runtime.require_sources()
    assert folder in str(error.value)
    assert error.value.hint.startswith("pip install apache-tvm==")
