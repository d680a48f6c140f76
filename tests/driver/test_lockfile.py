"""The lock file: written once, compared after, and what differs is named."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from mlc_compile.cache import Store
from mlc_compile.driver import keys as keys_module
from mlc_compile.driver import lockfile as module
from mlc_compile.driver.build import build
from mlc_compile.driver.job import DEFAULTS, Options
from mlc_compile.driver.lockfile import Lock
from mlc_compile.driver.reuse import Reuse
from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.records import RecordStore
from mlc_compile.target import find_target
from tests.driver.tuning import record, tune

HERE = "nano-qwen3 (q4f16_1) for cpu"
KERNEL = "cpu cpu.int8_gemm n=64"  # a library and what it looks for a record of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mlc-compile.lock"


@pytest.fixture
def locked(nano, tmp_path, stub, path):
    """`locked(frozen=True)`: build for this machine under the lock file."""

    def run(*, cache="cache", options=DEFAULTS, targets=("cpu",), store=True, lock=path, **asked):
        stub.clear()
        kept, records = Store(tmp_path / cache), RecordStore(tmp_path / cache)
        reuse = Reuse(kept if store else None, records=records)
        rows = tuple(find_target(name) for name in targets)
        out = tmp_path / f"out-{cache}"
        return build(
            nano.path, rows, "q4f16_1", out, options, reuse=reuse, lock=Lock(lock, **asked)
        )

    return run


def entry(path):
    (found,) = json.loads(path.read_text())["builds"]
    return found


def test_the_first_build_writes_it_and_the_second_leaves_it(locked, path, stub):
    locked()
    data, written = path.read_bytes(), path.stat().st_mtime_ns
    found = entry(path)
    assert (found["model"], found["quant"], found["target"]) == ("nano-qwen3", "q4f16_1", "cpu")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found["checkpoint"])
    assert found["tools"]["apache-tvm"] == "0.27.0.post1"
    assert found["tools"]["linker.name"] in found["tools"]["linker.version"]
    assert {"lib.so", "weights", "weights.bin"} == set(found["results"])
    assert found["decisions"]["limits.context"] == "512"
    assert found["records"] == {}
    locked(frozen=True)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (data, written)


def test_another_cache_and_directory_and_none_give_the_same_file(locked, path, tmp_path):
    locked()
    locked(cache="other", lock=tmp_path / "second.lock")
    locked(cache="third", store=False, lock=tmp_path / "third.lock")
    assert path.read_bytes() == (tmp_path / "second.lock").read_bytes()
    assert path.read_bytes() == (tmp_path / "third.lock").read_bytes()


def test_it_names_no_place_and_no_time(locked, path, tmp_path):
    locked()
    assert str(tmp_path) not in path.read_text()
    assert '"/' not in path.read_text()


def test_its_tables_are_sorted(locked, path):
    locked()
    for name in module.TABLES:
        table = entry(path)[name]
        assert list(table) == sorted(table)


def test_a_frozen_file_must_have_the_build(locked, path, stub):
    with pytest.raises(DamageError, match="no entry for nano-qwen3") as raised:
        locked(frozen=True)
    assert raised.value.exit_code == 6
    assert stub == []
    assert not path.exists()


# ---- what differs ------------------------------------------------------------------------


def refused(locked, **asked):
    """The one sentence of a build that is not as it is locked."""
    with pytest.raises(DamageError) as raised:
        locked(**asked)
    assert "--update-lock" in raised.value.hint
    return str(raised.value)


def test_an_option_is_named_and_nothing_was_made(locked, path, stub):
    locked()
    before = path.read_bytes()
    said = refused(locked, options=Options(prefill_chunk=64))
    assert said == (
        f"{HERE} is not as {path} locks it: decisions.limits.prefill_chunk differs "
        "(decisions.limits.prefill_chunk: locked 512, here 64)"
    )
    assert stub == []
    assert path.read_bytes() == before


def test_a_changed_checkpoint_is_named(locked, nano):
    locked()
    with nano.tensors() as tensors:
        next(iter(tensors.values()))[...] = 0
    assert "checkpoint.model.safetensors differs" in refused(locked)


def test_records_are_named(locked, tmp_path):
    locked()
    tune(RecordStore(tmp_path / "cache"), "cpu", record())
    said = refused(locked)
    assert f"records.{KERNEL} differs (records.{KERNEL}: locked nothing, here " in said
    locked(update=True)
    locked(frozen=True)
    said = refused(locked, cache="other")  # a machine that lacks them
    assert said.endswith("here nothing)")


def test_records_of_what_it_does_not_ask_for_are_no_concern_of_the_lock(locked, path, tmp_path):
    locked()
    before = path.read_bytes()
    tune(RecordStore(tmp_path / "cache"), "cpu", record(n=128))
    locked(frozen=True)
    locked(cache="other")
    assert path.read_bytes() == before


def test_where_nobody_knows_what_is_asked_records_are_compared_once_it_is(locked, path, tmp_path):
    """An empty cache, with records: compiling tells which of them count."""
    tune(RecordStore(tmp_path / "cache"), "cpu", record(), record(n=128))
    locked()
    before = path.read_bytes()
    assert list(entry(path)["records"]) == [KERNEL]
    tune(RecordStore(tmp_path / "same"), "cpu", record(), record(n=256))
    locked(cache="same")
    tune(RecordStore(tmp_path / "better"), "cpu", record(2, took=4.0), record(n=128))
    assert f"records.{KERNEL} differs" in refused(locked, cache="better")
    assert path.read_bytes() == before


def test_without_a_cache_the_lock_is_the_same(locked, path, tmp_path):
    tune(RecordStore(tmp_path / "cache"), "cpu", record(), record(n=128))
    locked()
    before = path.read_bytes()
    locked(store=False)
    locked(update=True, store=False)
    assert path.read_bytes() == before


def test_a_tool_is_named_with_both_versions(locked, monkeypatch):
    locked()
    installed = module.installed
    monkeypatch.setattr(
        module, "installed", lambda name: "9.9" if name == "numpy" else installed(name)
    )
    said = refused(locked)
    assert f"tools.numpy: locked {installed('numpy')}, here 9.9)" in said


def test_our_own_code_is_a_tool(locked, tmp_path):
    locked()
    (keys_module.PACKAGE / "passes.py").write_text("# changed\n")
    assert "tools.mlc-compile.code differs" in refused(locked)


def test_a_target_that_changed_its_row_is_named(locked, path):
    locked()
    found = json.loads(path.read_text())
    found["builds"][0]["decisions"]["target"] = "0" * 64
    path.write_text(json.dumps(found))
    assert "decisions.target differs (decisions.target: locked 000000000000..., " in refused(locked)


def test_other_bytes_from_the_same_inputs_are_told_at_the_end(locked, path, stub):
    locked()
    found = json.loads(path.read_text())
    found["builds"][0]["results"]["lib.so"] = "0" * 64
    path.write_text(json.dumps(found))
    before = path.read_bytes()
    assert "results.lib.so differs" in refused(locked)
    assert path.read_bytes() == before
    assert "results.lib.so differs" in refused(locked, frozen=True)


@pytest.fixture
def at_the_end(monkeypatch):
    """`at_the_end(meddle)`: that happens when all is made, before results are compared."""
    settle = Lock.settle

    def arrange(meddle):
        monkeypatch.setattr(Lock, "settle", lambda *args: meddle() or settle(*args))

    return arrange


def test_an_input_that_changed_under_the_build_is_not_locked(locked, nano, path, at_the_end):
    def meddle():
        with nano.tensors() as tensors:
            tensors["model.norm.weight"][3] ^= 1

    at_the_end(meddle)
    with pytest.raises(ConfigError, match=r"model\.safetensors changed during the build"):
        locked()
    assert not path.exists()


def test_where_all_is_locked_already_it_does_not_matter(locked, nano, path, at_the_end):
    locked()
    before = path.read_bytes()
    at_the_end((nano.path / "model.safetensors").touch)
    locked(frozen=True)
    assert path.read_bytes() == before


def test_several_differences_are_listed(locked, path):
    locked()
    said = refused(locked, options=Options(prefill_chunk=64, kv_dtype="float32"))
    assert "decisions.kv.dtype, decisions.limits.prefill_chunk differ (decisions.kv.dtype" in said


# ---- several builds ----------------------------------------------------------------------


def test_a_build_that_it_does_not_know_is_added_in_order(locked, path):
    locked()
    one = entry(path)
    other = {**one, "target": "a-target"}
    path.write_text(json.dumps({"format": 1, "builds": [other]}))
    locked()
    assert json.loads(path.read_text())["builds"] == [other, one]


def test_updating_replaces_what_is_built_alone(locked, path):
    locked()
    one = entry(path)
    other = {**one, "target": "a-target", "tools": {"numpy": "0"}}
    old = {**one, "tools": {"numpy": "0"}}
    path.write_text(json.dumps({"format": 1, "builds": [old, other]}))
    locked(update=True)
    assert json.loads(path.read_text())["builds"] == [other, one]


def test_two_builds_that_end_together_both_stand_in_it(locked, path, monkeypatch):
    """The other's entry appears between our reading and our writing."""
    locked()
    one = entry(path)
    other = msgspec.convert({**one, "target": "a-target"}, module.Locked)
    path.unlink()

    def check_then_other(self, jobs, reuse):
        check(self, jobs, reuse)
        module._write(path, {other.name: other})

    check = Lock.check
    monkeypatch.setattr(Lock, "check", check_then_other)
    locked()
    assert {found["target"] for found in json.loads(path.read_text())["builds"]} == {
        "a-target",
        "cpu",
    }


# ---- files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="half"),
        pytest.param('{"format": 1}', id="no builds"),
        pytest.param('{"format": 2, "builds": []}', id="another format"),
        pytest.param('{"format": 1, "builds": [], "more": 1}', id="unknown"),
        pytest.param("[" * 100_000, id="without end"),
    ],
)
@pytest.mark.parametrize("update", [False, True])
def test_what_is_no_lock_file_is_refused_and_left(locked, path, stub, text, update):
    path.write_text(text)
    with pytest.raises(DamageError, match=str(path)):
        locked(update=update)
    assert (path.read_text(), stub) == (text, [])


def test_a_place_that_takes_no_file_is_refused_before_the_work(locked, tmp_path, stub):
    with pytest.raises(ConfigError, match="is a directory"):
        locked(lock=tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        locked(lock=tmp_path / "none" / "mlc-compile.lock")
    with pytest.raises(ConfigError, match="/dev/null is no regular file"):
        locked(lock=Path("/dev/null"))
    assert stub == []


def test_a_symbolic_link_stays_and_what_it_leads_to_is_written(locked, path, tmp_path):
    (tmp_path / "repository").mkdir()
    path.symlink_to(tmp_path / "repository" / "lock")
    locked()
    assert path.is_symlink()
    assert (tmp_path / "repository" / "lock").is_file()
    assert sorted(p.name for p in (tmp_path / "repository").iterdir()) == ["lock"]


def test_the_repository_moved_elsewhere_is_locked_the_same(locked, nano, path, tmp_path):
    locked()
    moved = tmp_path / "elsewhere" / nano.path.name
    shutil.copytree(nano.path, moved)
    reuse = Reuse(Store(tmp_path / "moved"))
    lock = Lock(path, frozen=True)
    build(moved, (find_target("cpu"),), "q4f16_1", tmp_path / "out-moved", reuse=reuse, lock=lock)
