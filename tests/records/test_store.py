"""The store: what is appended is found again, by target and space, if it was measured at all."""

import math

import msgspec
import pytest

from mlc_compile.errors import EnvironmentError_
from mlc_compile.records import NOTHING, RecordStore, Workload, partition_of
from mlc_compile.records import store as module
from mlc_compile.target import find_target


def test_what_is_appended_is_loaded_in_order_and_once(store, here, record):
    assert store.append(here, [record(2), record(1)]) == ()
    assert store.append(here, [record(1), record(3)]) == ()
    loaded = store.load(here)
    assert loaded.records == (record(2), record(1), record(3))
    assert (loaded.partition, loaded.dropped, loaded.repeated) == (here, (), 0)


def test_a_store_that_is_not_there_has_nothing_and_is_not_made(store, here, record):
    assert store.load(here).records == ()
    assert store.chosen(here) == NOTHING
    assert (store.digest(here), store.all(), store.files()) == ("", (), {})
    assert (store.append(here, []), store.compact()) == ((), 0)
    assert store.merge(RecordStore(store.cache_dir / "other")) == 0
    assert not store.cache_dir.exists()


@pytest.mark.parametrize("value", [0.0, -3.0, math.nan, math.inf, 1e16])
def test_a_cost_that_was_not_measured_is_refused_and_the_others_are_kept(
    store, here, record, value
):
    bad = record(2, microseconds=value)
    (refused,) = store.append(here, [record(1), bad, record(3)])
    assert refused.record is bad
    assert "must be a time above 0" in refused.reason
    assert store.load(here).records == (record(1), record(3))


def test_refused_records_alone_leave_no_file(store, here, record):
    store.append(here, [record(microseconds=0.0)])
    assert store.all() == ()


# ---- choosing ----------------------------------------------------------------------------


def test_the_fastest_that_beat_its_default_is_the_best(store, here, record):
    quick = record(1, microseconds=5.0, default_microseconds=5.05)  # within the noise
    store.append(here, [record(3), quick, record(2), record(4)])
    assert store.best(here, record().workload, space=1) == record(2)


def test_nothing_is_best_where_nothing_beat_its_default(store, here, record):
    store.append(here, [record(default_microseconds=11.0)])
    assert store.best(here, record().workload, 1) is None
    assert store.digest(here) == ""


def test_another_space_is_never_returned(store, here, record):
    store.append(here, [record(space=2), record(1, n=128)])
    assert store.best(here, record().workload, 1) is None
    assert store.best(here, record().workload, 3) is None
    assert store.best(here, record().workload, 2) == record(space=2)


def test_another_workload_is_never_returned(store, here, record):
    store.append(here, [record()])
    assert store.best(here, Workload.of("gemm", n=65), 1) is None
    assert store.best(here, Workload.of("gemv", n=64), 1) is None


def test_of_equal_costs_the_choice_does_not_depend_on_the_order(tmp_path, here, record):
    twins = [record(1, microseconds=7.0), record(2, microseconds=7.0)]
    best = []
    for name, order in {"a": twins, "b": twins[::-1]}.items():
        store = RecordStore(tmp_path / name)
        store.append(here, order)
        best.append(store.best(here, record().workload, 1))
    assert best[0] == best[1]


def test_the_digest_is_of_what_is_chosen(store, here, record):
    store.append(here, [record(2)])
    first = store.digest(here)
    store.append(here, [record(2), record(3), record(1, default_microseconds=1.0)])
    assert store.digest(here) == first
    store.append(here, [record(1)])
    second = store.digest(here)
    assert second != first
    store.append(here, [record(1, n=128)])
    assert store.digest(here) not in {first, second}


# ---- other targets -----------------------------------------------------------------------


@pytest.fixture
def foreign():
    return partition_of(find_target("cuda-sm90"), cores=2)


def test_another_target_s_record_is_never_returned(store, here, foreign, record):
    store.append(foreign, [record(1)])
    assert store.best(here, record().workload, 1) is None
    assert store.digest(here) == ""


def test_not_even_from_a_file_that_was_renamed_to_ours(store, here, foreign, record):
    store.append(foreign, [record(1), record(2)])
    store.path(foreign.digest).rename(store.path(here.digest))
    loaded = store.load(here)
    assert (loaded.partition, loaded.records) == (None, ())
    assert [(one.line, one.reason) for one in loaded.dropped] == [
        (line, "it is of another target") for line in (1, 2, 3)
    ]
    assert store.best(here, record().workload, 1) is None


@pytest.mark.parametrize("field", ["tvm", "tvm_ffi", "cores", "chip"])
def test_nor_one_of_another_tvm_or_machine(store, here, record, field):
    other = msgspec.structs.replace(here, **{field: 3 if field == "cores" else "other"})
    store.append(other, [record()])
    assert store.best(here, record().workload, 1) is None


# ---- strangers and disks -----------------------------------------------------------------


def test_other_files_are_left_alone(store, here, record):
    store.append(here, [record()])
    (store.root / "notes.jsonl").write_text("mine\n")
    (store.root / "README").write_text("mine\n")
    assert [one.digest for one in store.all()] == [here.digest]
    assert store.compact() == 0
    assert (store.root / "notes.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("kind", ["directory", "link to nowhere", "pipe"])
def test_what_is_no_file_in_a_file_s_place_makes_way(store, here, record, kind):
    place = store.path(here.digest)
    place.parent.mkdir(parents=True)
    {
        "directory": place.mkdir,
        "link to nowhere": lambda: place.symlink_to("nowhere"),
        "pipe": lambda: module.os.mkfifo(place),
    }[kind]()
    assert store.load(here).records == ()
    store.append(here, [record()])
    assert store.load(here).records == (record(),)


def test_a_disk_that_fills_up_leaves_the_file_as_it_was(store, here, record, monkeypatch):
    store.append(here, [record(1)])
    before = store.path(here.digest).read_bytes()

    def half(file, data):
        file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", half)
    with pytest.raises(EnvironmentError_) as raised:
        store.append(here, [record(2), record(3)])
    assert str(raised.value) == (
        f"the tuning records in {store.root} cannot be written: no space left on device"
    )
    assert "--cache-dir" in raised.value.hint
    assert store.path(here.digest).read_bytes() == before
    monkeypatch.undo()
    store.append(here, [record(2)])
    assert store.load(here).records == (record(1), record(2))


def test_a_disk_that_takes_a_little_at_a_time_gets_everything(store, here, record, monkeypatch):
    class Slow:
        def __init__(self):
            self.taken = b""

        def write(self, data):
            self.taken += data[:7]
            return len(data[:7])

    slow = Slow()
    module._write(slow, bytes(range(100)))
    assert slow.taken == bytes(range(100))


def test_a_cache_that_is_a_file_is_one_sentence_for_who_writes(tmp_path, here, record):
    (tmp_path / "cache").write_text("mine")
    store = RecordStore(tmp_path / "cache")
    assert store.load(here).records == ()
    with pytest.raises(EnvironmentError_, match="cannot be written: not a directory"):
        store.append(here, [record()])
    assert (tmp_path / "cache").read_text() == "mine"
