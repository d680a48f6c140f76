"""Tuning records and the lock file through the real command."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from mlc_compile.records import RecordStore, partition_of
from mlc_compile.target import find_target
from tests.driver.tuning import asked, record, tune

V3 = "cpu-x86-64-v3"
HOME = "nano-qwen3-q4f16_1"


@pytest.fixture
def store(tmp_path):
    """A store in the cache `tmp_path/cache`, tuned for one preset."""
    store = RecordStore(tmp_path / "cache")
    tune(store, V3, record(1), record(2, took=4.0))
    return store


@pytest.fixture
def path(store):
    return store.path(partition_of(find_target(V3), cores=1).digest)


def spoil(path):
    path.write_bytes(path.read_bytes().replace(b'"tile":1', b'"tile":7'))


def test_stats_show_what_was_tuned(manage, store):
    (one,) = manage(store.cache_dir, "stats", "--json").json["records"]
    assert one["title"] == "cpu x86-64-v3, x86_64-unknown-linux-gnu"
    counts = ("workloads", "records", "chosen", "best_speedup", "damaged")
    assert [one[name] for name in counts] == [1, 2, 1, 2.5, 0]
    shown = manage(store.cache_dir, "stats").out.splitlines()
    assert shown[0] == f"directory  {store.cache_dir}"
    assert shown[1] == "size       0.0 of 20.0 GiB"
    assert shown[-1].split() == [*one["title"].split(), "1", "2", "1", "2.50x"]


def test_stats_without_records_show_none(manage, tmp_path):
    assert manage(tmp_path / "none", "stats", "--json").json["records"] == []
    assert "tuned" not in manage(tmp_path / "none", "stats").out


def test_verify_finds_a_damaged_line_and_repairs_it(manage, store, path):
    spoil(path)
    ran = manage(store.cache_dir, "verify")
    assert (ran.code, ran.out) == (6, "0 entries, 0 damaged; 2 tuning records, 1 damaged\n")
    told, error, hint = ran.err.splitlines()
    assert told == f"{path}, line 2: it does not have its digest"
    assert error == "error: 1 of 2 tuning records are damaged; the others count"
    assert "--repair" in hint
    said = manage(store.cache_dir, "verify", "--json")
    assert json.loads(said.err.splitlines()[-1])["exit_code"] == 6  # after the story
    assert said.json["damaged_records"] == [
        {"file": str(path), "line": 2, "reason": "it does not have its digest"}
    ]
    ran = manage(store.cache_dir, "verify", "--repair")
    assert (ran.code, ran.out.endswith("records, 1 damaged, which were removed\n")) == (0, True)
    ran = manage(store.cache_dir, "verify")
    assert (ran.code, ran.out) == (0, "0 entries, 0 damaged; 1 tuning records, 0 damaged\n")
    (left,) = store.all()[0].records
    assert left == record(2, took=4.0)


def test_gc_removes_damaged_lines_and_no_record_whatever_the_size(manage, store, path):
    spoil(path)
    ran = manage(store.cache_dir, "gc", "--cache-size", "0", "--json")
    assert ran.json == {"removed": [], "nbytes": 0, "record_lines": 1}
    assert store.all()[0].records == (record(2, took=4.0),)


def test_records_travel_in_one_file_and_merge_there(manage, store, tmp_path):
    bundle, other = tmp_path / "bundle", RecordStore(tmp_path / "other")
    assert manage(store.cache_dir, "export", bundle, "--json").json["records"] == 2
    tune(other, V3, record(1), record(3))
    ran = manage(other.cache_dir, "import", bundle)
    assert (ran.code, ran.out) == (0, "0 new entries, 1 new tuning records\n")
    assert manage(other.cache_dir, "import", bundle, "--json").json["records"] == 0
    held = sorted(one.choice["tile"] for one in other.all()[0].records)
    assert held == [1, 2, 3]


def test_equal_records_give_equal_bundles_damaged_or_not(manage, store, path, tmp_path):
    copy = RecordStore(Path(shutil.copytree(store.cache_dir, tmp_path / "copy")))
    copied = copy.path(path.stem)
    copied.write_bytes(b"rubbish\n" + copied.read_bytes() + copied.read_bytes())
    for one, name in ((store, "one"), (copy, "two")):
        assert manage(one.cache_dir, "export", tmp_path / name).code == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_bundle_with_one_wrong_byte_brings_no_record(manage, store, tmp_path):
    bundle, other = tmp_path / "bundle", RecordStore(tmp_path / "other")
    manage(store.cache_dir, "export", bundle)
    data = bundle.read_bytes()
    at = data.index(b'"tile":1')
    bundle.write_bytes(data[:at] + b"x" + data[at + 1 :])
    ran = manage(other.cache_dir, "import", bundle)
    assert ran.code == 6
    assert other.all() == ()


def test_records_that_cannot_be_read_end_a_build_in_a_sentence(manage, path, tmp_path):
    path.unlink()
    path.symlink_to(path)
    ran = manage(tmp_path / "cache", "stats")
    assert (ran.code, ran.out) == (7, "")
    error, hint = ran.err.splitlines()[-2:]
    assert error.startswith(f"error: the tuning records in {path.parent} cannot be read: ")
    assert "--cache-dir" in hint


# ---- the lock file -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(run, nano_checkpoint, tmp_path_factory):
    """A cache with records, of this model and others, and a lock file and an output of it."""
    base = tmp_path_factory.mktemp("locked")
    lock = base / "mlc-compile.lock"
    build = ("build", nano_checkpoint, "-t", V3, "-o", base / "out")
    assert run(base / "cache", *build).code == 0
    mine = replace(record(), workload=asked(base / "cache", "cpu.int8_gemm"))
    tune(RecordStore(base / "cache"), V3, mine, record())
    ran = run(base / "cache", *build, "--lockfile", lock)
    assert ran.code == 0, ran.err
    return base


def library(out):
    return (out / HOME / V3 / "lib.so").read_bytes()


def test_another_machine_s_cache_gives_the_same_library_with_the_lock_and_the_records(
    run, locked, nano_checkpoint, tmp_path
):
    """Nothing but the lock file, the records and the checkpoint is carried over."""
    lock, other = tmp_path / "mlc-compile.lock", tmp_path / "cache"
    shutil.copy(locked / "mlc-compile.lock", lock)
    arguments = ("build", nano_checkpoint, "-t", V3, "-o", tmp_path / "out", "--lockfile", lock)
    ran = run(other, *arguments)
    assert (ran.code, ran.out) == (6, "")
    error, hint = ran.err.splitlines()
    assert error.startswith(f"error: nano-qwen3 (q4f16_1) for {V3} is not as {lock} locks it: ")
    name = f"records.{V3} {asked(locked / 'cache', 'cpu.int8_gemm').title}"
    assert f"{name} differs ({name}: locked " in error
    assert error.endswith(", here nothing)")
    assert "--update-lock" in hint
    RecordStore(other).merge(RecordStore(locked / "cache"))
    ran = run(other, *arguments)
    assert ran.code == 0, ran.err
    assert library(tmp_path / "out") == library(locked / "out")
    assert lock.read_bytes() == (locked / "mlc-compile.lock").read_bytes()


def test_locked_asks_the_lock_first_and_then_the_cache(run, locked, nano_checkpoint, tmp_path):
    lock = locked / "mlc-compile.lock"
    build = ("build", nano_checkpoint, "-t", V3, "-o", tmp_path / "out", "--locked")
    ran = run(locked / "cache", *build, "--lockfile", lock)
    assert ran.code == 0, ran.err
    ran = run(locked / "cache", *build, "--lockfile", tmp_path / "none.lock")
    assert (ran.code, ran.out) == (6, "")
    assert "has no entry for nano-qwen3" in ran.err
    ran = run(locked / "cache", *build, "--lockfile", lock, "--context", "100")
    assert ran.code == 6
    assert "decisions.limits.context" in ran.err


def test_a_lock_file_names_no_place(locked):
    text = (locked / "mlc-compile.lock").read_text()
    assert str(locked) not in text
    assert '"/' not in text
    (entry,) = json.loads(text)["builds"]
    assert set(entry["records"]) == {f"{V3} {asked(locked / 'cache', 'cpu.int8_gemm').title}"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--update-lock"], "--update-lock needs a lock file"),
        (["--update-lock", "--locked", "--lockfile", "x"], "--locked forbids changes"),
    ],
)
def test_options_of_the_lock_that_contradict_are_usage_errors(
    run, nano_checkpoint, tmp_path, options, told
):
    ran = run(tmp_path / "cache", "build", nano_checkpoint, *options, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {told}")
    assert list(tmp_path.iterdir()) == []
