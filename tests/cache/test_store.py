"""The store: whole entries or none, damage seen, size kept, and trouble that stops no build."""

import errno
import os
import shutil
import time

import pytest

from mlc_compile.cache import Key, Store
from mlc_compile.cache import store as module
from mlc_compile.cache.key import ENTRY, FILES

FILES_OF_A = {"lib.so": b"machine code", "deep/text.json": b"{}", "empty": b""}


def contents(directory):
    files = (p for p in directory.rglob("*") if p.is_file())
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}


def test_what_is_put_in_comes_out(store, put, tmp_path):
    key = put(store, "a", FILES_OF_A)
    entry = store.find(key)
    out = tmp_path / "out"
    out.mkdir()
    assert store.restore(entry, out)
    assert contents(out) == FILES_OF_A
    assert store.read(entry, "lib.so") == b"machine code"
    assert store.notes == []


def test_another_key_is_a_miss(store, put):
    put(store, "a", FILES_OF_A)
    assert store.find(Key(level="library", parts={"part": "b"})) is None
    assert store.find(Key(level="packed", parts={"part": "a"})) is None
    assert store.notes == []


def test_writing_to_what_was_restored_does_not_reach_the_cache(store, put, tmp_path):
    key = put(store, "a", FILES_OF_A)
    for name in ("one", "two"):
        out = tmp_path / name
        out.mkdir()
        assert store.restore(store.find(key), out)
        assert contents(out) == FILES_OF_A
        with (out / "lib.so").open("r+b") as file:
            file.write(b"vandalism")
        os.truncate(out / "empty", 10)


DAMAGE = {
    "first byte": lambda path: flip(path, 0),
    "last byte": lambda path: flip(path, -1),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "gone": lambda path: path.unlink(),
}


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize("name", [f"{FILES}/lib.so", f"{FILES}/deep/text.json"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_a_miss_that_is_told_once(store, put, tmp_path, kind, name):
    key = put(store, "a", FILES_OF_A)
    DAMAGE[kind](store.directories()[0] / name)
    out = tmp_path / "out"
    out.mkdir()
    assert not store.restore(store.find(key), out)
    assert contents(out) == {}
    (note,) = store.notes
    assert note.startswith("a library entry of the cache was damaged")
    assert store.find(key) is None
    put(store, "a", FILES_OF_A)
    assert store.restore(store.find(key), out)
    assert len(store.notes) == 1


@pytest.mark.parametrize("kind", [*DAMAGE])
def test_a_damaged_entry_is_a_miss_that_is_told_once(store, put, kind):
    key = put(store, "a", FILES_OF_A)
    DAMAGE[kind](store.directories()[0] / ENTRY)
    found = store.find(key)
    if found is None:
        assert len(store.notes) == 1
        assert store.directories() == ()
    else:  # a final newline more or less says the same
        assert kind in {"cut short", "longer", "last byte"}
        assert found.files


def test_a_small_file_that_is_damaged_is_a_miss(store, put):
    key = put(store, "a", {"check.json": b"{}"}, level="proof")
    flip(store.directories()[0] / FILES / "check.json", 0)
    assert store.read(store.find(key), "check.json") is None
    assert len(store.notes) == 1
    assert store.find(key) is None


def test_bytes_can_be_kept_without_a_directory(store):
    key = Key(level="proof", parts={"part": "a"})
    with store.locked(key.digest):
        store.add_bytes(key, "check.json", b"{}")
    assert store.read(store.find(key), "check.json") == b"{}"
    assert list((store.root / "scratch").iterdir()) == []


def test_an_entry_that_is_collected_before_it_is_read_is_a_plain_miss(store, put, tmp_path):
    entry = store.find(put(store, "a", FILES_OF_A))
    store.collect(0)
    (tmp_path / "out").mkdir()
    assert store.read(entry, "lib.so") is None
    assert not store.restore(entry, tmp_path / "out")
    assert store.notes == []


# ---- size -------------------------------------------------------------------------------


def use(store, *keys):
    for key in keys:
        time.sleep(0.005)  # more than a tick of the file system's clock
        assert store.find(key) is not None


def parts(store):
    return [held.entry.key.parts["part"] for held in store.held()]


def test_what_served_least_recently_goes_first(store, put):
    a, b, c = (put(store, part, {"f": bytes(100)}) for part in "abc")
    use(store, a, b, c, a)
    assert parts(store) == ["b", "c", "a"]
    removed = store.collect(250)
    assert [entry.key for entry in removed] == [b]
    assert [entry.key for entry in store.collect(199)] == [c]
    assert store.collect(199) == ()
    assert parts(store) == ["a"]


def test_adding_keeps_the_store_below_its_limit(tmp_path, put):
    store = Store(tmp_path / "cache", limit=250)
    for part in "abcd":
        put(store, part, {"f": bytes(100)})
        time.sleep(0.005)
    assert parts(store) == ["c", "d"]
    assert store.notes == []


def test_an_entry_beyond_the_limit_is_told_and_not_kept(tmp_path, put):
    store = Store(tmp_path / "cache", limit=250)
    a = put(store, "a", {"f": bytes(100)})
    big = put(store, "b", {"f": bytes(300)})
    assert store.find(big) is None
    assert store.find(a) is not None
    (note,) = store.notes
    assert "more than the cache may hold" in note


def test_what_somebody_works_with_stays(store, put):
    a, b = (put(store, part, {"f": bytes(100)}) for part in "ab")
    with store.locked(a.digest):
        assert [entry.key for entry in store.collect(0)] == [b]
    assert parts(store) == ["a"]


def test_what_killed_builds_left_is_cleared_and_what_others_write_is_not(store, put):
    a = put(store, "a", {"f": b"1"})
    scratch = store.root / "scratch"
    (scratch / ("0" * 64)).mkdir()
    (scratch / f"{a.digest}.bytes").mkdir()
    with store.locked(a.digest):
        store.collect(store.limit)
        assert [path.name for path in scratch.iterdir()] == [f"{a.digest}.bytes"]
    store.collect(store.limit)
    assert list(scratch.iterdir()) == []
    assert list((store.root / "locks").iterdir()) == []
    assert store.find(a) is not None


def test_an_entry_that_cannot_be_read_does_not_stay_for_good(store, put):
    a, b = (put(store, part, {"f": bytes(100)}) for part in "ab")
    bad = next(d for d in store.directories() if d.name == a.digest)
    flip(bad / ENTRY, 0)
    with store.locked(a.digest):  # perhaps being made again
        store.collect(store.limit)
        assert bad.is_dir()
    assert store.collect(store.limit) == ()
    assert [d.name for d in store.directories()] == [b.digest]


# ---- trouble ----------------------------------------------------------------------------


def refuse(number):
    def fail(*_args, **_options):
        raise OSError(number, os.strerror(number), "/somewhere")

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("where", ["copy_in", "write_entry", "sync", "acquire"])
def test_a_store_that_cannot_be_written_says_so_once(
    store, put, tmp_path, monkeypatch, number, where
):
    monkeypatch.setattr(module, where, refuse(number))
    a, _b = put(store, "a", FILES_OF_A), put(store, "b", FILES_OF_A)
    (note,) = store.notes
    assert os.strerror(number).lower() in note
    assert note.endswith("building without it")
    assert store.find(a) is None
    scratch = store.root / "scratch"
    assert not scratch.is_dir() or list(scratch.iterdir()) == []


def test_a_cache_that_is_a_file_says_so_once(tmp_path, put):
    (tmp_path / "cache").write_text("no directory")
    store = Store(tmp_path / "cache")
    key = put(store, "a", FILES_OF_A)
    assert store.find(key) is None
    (note,) = store.notes
    assert "not a directory" in note or "file exists" in note


def test_a_store_that_cannot_be_written_is_still_read(store, put, tmp_path, monkeypatch):
    key = put(store, "a", FILES_OF_A)
    monkeypatch.setattr(module, "acquire", refuse(errno.EROFS))
    monkeypatch.setattr(module.os, "utime", refuse(errno.EROFS))
    (tmp_path / "out").mkdir()
    with store.locked(key.digest):
        assert store.restore(store.find(key), tmp_path / "out")


def test_a_full_target_is_not_taken_for_a_damaged_entry(store, put, tmp_path, monkeypatch):
    key = put(store, "a", FILES_OF_A)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(module, "copy_out", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        store.restore(store.find(key), tmp_path / "out")
    assert store.find(key) is not None
    assert store.notes == []


def test_the_last_half_of_a_disk_is_left_to_the_build(store, put, monkeypatch):
    usage = shutil._ntuple_diskusage(1000, 801, 199)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _path: usage)
    assert store.find(put(store, "a", {"f": bytes(100)})) is None
    (note,) = store.notes
    assert "too little space" in note


def test_a_failing_write_leaves_no_entry(store, put, monkeypatch):
    monkeypatch.setattr(module, "write_entry", refuse(errno.ENOSPC))
    put(store, "a", FILES_OF_A)
    assert store.directories() == ()
