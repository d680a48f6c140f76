"""The store: whole entries or none, damage seen, size kept, and trouble that stops no build."""

import errno
import os
import shutil
import time

import pytest

from mlc_compile.cache import Key, Store
from mlc_compile.cache import keep as keeping
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


@pytest.mark.parametrize("how", ["made again", "in other hands"])
def test_an_entry_that_somebody_else_makes_is_not_discarded(store, put, how):
    """We found it damaged without its lock; since then its maker replaced it, or is about to."""
    key = put(store, "a", FILES_OF_A)
    other = Store(store.cache_dir)
    if how == "made again":
        store.discard(key, "lib.so is damaged")
    else:
        flip(store.place(key) / FILES / "lib.so", 0)
        with other.locked(key.digest):
            store.discard(key, "lib.so is damaged")
    assert store.has(key)
    assert store.notes == []
    assert store.fault(key) == "its entry could not be read a moment ago (lib.so is damaged)"


def test_a_sound_entry_that_is_refused_goes_unless_another_took_its_place(store, put):
    key = put(store, "a", FILES_OF_A)
    old = store.find(key)
    put(store, "a", {**FILES_OF_A, "lib.so": b"better"})
    store.discard(key, "it says what no build said", refused=old)
    assert store.has(key)
    store.discard(key, "it says what no build said", refused=store.find(key))
    assert not store.has(key)


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


def test_a_full_store_is_not_looked_through_at_every_entry(tmp_path, put, monkeypatch):
    store, looked = Store(tmp_path / "cache", limit=1000), []
    held = Store.held
    monkeypatch.setattr(Store, "held", lambda self: looked.append(1) or held(self))
    for i in range(100):
        put(store, str(i), {"f": bytes(20)})
    assert len(looked) < 25
    assert 900 < sum(one.entry.nbytes for one in held(store)) <= 1000


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


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize(
    ("owner", "where"),
    [
        *((keeping, name) for name in ("copy_in", "write_entry", "sync")),
        (module, "acquire"),
        (keeping.shutil, "disk_usage"),
    ],
)
def test_a_store_that_cannot_be_written_says_so_once(
    store, put, tmp_path, monkeypatch, number, owner, where
):
    monkeypatch.setattr(owner, where, refuse(number))
    a, _b = put(store, "a", FILES_OF_A), put(store, "b", FILES_OF_A)
    (note,) = store.notes
    assert os.strerror(number).lower() in note
    assert note.endswith("building without it")
    assert store.find(a) is None
    scratch = store.root / "scratch"
    assert not scratch.is_dir() or list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["copy_in", "write_entry", "sync"])
def test_a_disk_that_is_full_before_an_entry_is_whole_costs_that_entry_and_one_sentence(
    store, put, monkeypatch, number, where
):
    with monkeypatch.context() as full:
        full.setattr(keeping, where, refuse(number))
        a, b = put(store, "a", FILES_OF_A), put(store, "b", FILES_OF_A)
        with store.writing():
            refuse(number)()  # of what is no entry
    assert not store.has(a)
    assert not store.has(b)
    (note,) = store.notes
    assert "2 entries take up to 14 bytes each, and too little space" in note
    assert list(store.scratch.iterdir()) == []


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
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _path: usage)
    assert store.find(put(store, "a", {"f": bytes(100)})) is None
    (note,) = store.notes
    assert "too little space" in note


def test_an_entry_without_room_on_the_disk_is_left_out_alone(store, put, monkeypatch):
    usage = shutil._ntuple_diskusage(1000, 801, 199)
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _path: usage)
    big, more, small = (put(store, str(n), {"f": bytes(n)}) for n in (300, 200, 9))
    assert [store.has(key) for key in (big, more, small)] == [False, False, True]
    (note,) = store.notes
    assert note.startswith("2 entries take up to 300 bytes each, and too little space")


def test_old_entries_make_room_on_the_disk(store, put, monkeypatch):
    def usage(_path):
        taken = sum(one.entry.nbytes for one in store.held())
        return shutil._ntuple_diskusage(1000, 600 + taken, 400 - taken)

    monkeypatch.setattr(keeping.shutil, "disk_usage", usage)
    for part in "abcd":
        put(store, part, {"f": bytes(100)})
        time.sleep(0.005)
    assert parts(store) == ["b", "c", "d"]
    assert store.notes == []


def test_what_was_made_and_cannot_be_read_costs_one_sentence(store, put, monkeypatch):
    def fail(*_args):
        raise module.Unreadable

    monkeypatch.setattr(keeping, "copy_in", fail)
    assert store.find(put(store, "a", FILES_OF_A)) is None
    (note,) = store.notes
    assert "what was made cannot be read" in note


def test_a_failing_write_leaves_no_entry(store, put, monkeypatch):
    monkeypatch.setattr(keeping, "write_entry", refuse(errno.ENOSPC))
    put(store, "a", FILES_OF_A)
    assert store.directories() == ()
