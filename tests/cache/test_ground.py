"""Strangers in the store: found as damage, removed by repair, no trouble to a build."""

import os
import shutil

import pytest

from mlc_compile.cache import Key, Stamps, Store
from mlc_compile.cache.check import check, repair
from mlc_compile.cache.key import ENTRY, FILES
from mlc_compile.errors import EnvironmentError_
from mlc_compile.staging.lock import acquire, release


def replace(path, make):
    """Put what `make` makes in the place of `path`."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make(path)


def as_file(path):
    path.write_text("somebody's")


def as_loop(path):
    path.symlink_to(path)


STRANGERS = {
    "a file beside the entries": lambda e: as_file(e.parent / ".DS_Store"),
    "a name of many characters": lambda e: as_file(e.parent / ("x" * 255)),
    "a link that leads nowhere": lambda e: (e.parent / "link").symlink_to("nowhere"),
    "a file for an entry": lambda e: replace(e, as_file),
    "a loop for an entry": lambda e: replace(e, as_loop),
    "a directory for entry.json": lambda e: replace(e / ENTRY, lambda p: p.mkdir()),
    "a loop for entry.json": lambda e: replace(e / ENTRY, as_loop),
    "a pipe for entry.json": lambda e: replace(e / ENTRY, os.mkfifo),
    "a file for the files": lambda e: replace(e / FILES, as_file),
    "a directory for a file": lambda e: replace(e / FILES / "f", lambda p: p.mkdir()),
    "a pipe for a file": lambda e: replace(e / FILES / "f", os.mkfifo),
    "a pipe among the files": lambda e: os.mkfifo(e / FILES / "pipe"),
    "a file for a level": lambda e: replace(e.parent, as_file),
    "a file for all levels": lambda e: replace(e.parent.parent, as_file),
}


def damage(store):
    return [damaged for _directory, damaged in check(store) if damaged is not None]


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_does_not_belong_is_damage_that_repair_removes(store, put, kind):
    put(store, "a", {"f": b"1"})
    (entry,) = store.directories()
    STRANGERS[kind](entry)
    (found,) = damage(store)
    repair(store, found.directory)
    assert damage(store) == []
    assert not os.path.lexists(found.directory)
    assert list(store.scratch.iterdir()) == []


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_build_keeps_what_it_makes_in_spite_of_it(store, put, tmp_path, kind):
    key = put(store, "a", {"f": b"1"})
    (entry,) = store.directories()
    STRANGERS[kind](entry)
    later = Store(store.cache_dir)  # a later process
    found = later.find(key)
    served = found is not None and later.read(found, "f") == b"1"
    if not served:
        put(later, "a", {"f": b"1"})
    put(later, "b", {"f": b"2"})
    for part, expected in (("a", b"1"), ("b", b"2")):
        again = later.find(Key(level="library", parts={"part": part}))
        assert again is not None, part
        assert later.read(again, "f") == expected
    assert not [note for note in later.notes if "building without it" in note]
    later.collect(later.limit)
    assert len(later.directories()) == 2


PLACES = ("locks", "scratch", "entries", ".")


@pytest.mark.parametrize("place", PLACES)
def test_a_file_in_the_place_of_a_directory_of_ours_goes(store, put, place):
    put(store, "a", {"f": b"1"})
    replace(store.root / place if place != "." else store.root, as_file)
    later = Store(store.cache_dir)
    key = put(later, "b", {"f": b"2"})
    assert later.find(key) is not None
    assert later.notes == []


def test_a_directory_in_the_place_of_a_lock_or_of_stamps_goes(store, tmp_path):
    store.locks.mkdir(parents=True)
    (store.locks / "name").mkdir()
    handle = acquire(store.locks / "name")
    assert handle is not None
    release(handle)
    (store.root / "stamps.json").mkdir()
    (tmp_path / "f").write_text("old")
    os.utime(tmp_path / "f", (0, 0))
    stamps = Stamps(store.root)
    stamps.remember(tmp_path, ())
    stamps._dirty = True
    stamps.save()
    assert (store.root / "stamps.json").is_file()


@pytest.mark.parametrize("make", [as_file, as_loop, lambda p: p.symlink_to("nowhere")])
@pytest.mark.parametrize("place", ["cache", "cache/builds", "cache/builds/1"])
def test_a_cache_in_whose_place_something_else_lies_is_the_machine_s_fault(tmp_path, make, place):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / place)
    with pytest.raises(EnvironmentError_, match=str(tmp_path / place)) as error:
        Store(tmp_path / "cache").require()
    assert error.value.exit_code == 7


def test_a_cache_that_is_not_there_or_behind_a_link_is_no_trouble(tmp_path):
    Store(tmp_path / "none").require()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    Store(tmp_path / "link").require()


def test_a_cache_below_a_file_is_the_machine_s_fault(tmp_path):
    as_file(tmp_path / "file")
    with pytest.raises(EnvironmentError_, match="not a directory"):
        Store(tmp_path / "file" / "cache").require()


def snapshot(directory):
    paths = sorted(directory.rglob("*"))
    return {p: (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def test_who_only_looks_leaves_everything_as_it_is(store, put, tmp_path):
    a, b = (put(store, part, {"f": b"1"}) for part in "ab")
    damaged = store.root / "entries" / "library" / b.digest / ENTRY
    damaged.write_text("{}")
    before = snapshot(tmp_path / "cache")
    looking = store.looking()
    entry = looking.find(a)
    assert looking.read(entry, "f") == b"1"
    with looking.locked(a.digest):
        looking.add(Key(level="proof", parts={}), tmp_path, ())
    looking.add_bytes(Key(level="proof", parts={}), "x", b"1")
    assert looking.find(b) is None
    assert snapshot(tmp_path / "cache") == before
    (note,) = looking.notes
    assert "is damaged" in note


def test_entries_beyond_the_limit_are_told_in_one_note(tmp_path, put):
    store = Store(tmp_path / "cache", limit=10)
    for part in "abc":
        put(store, part, {"f": bytes(100)})
    (note,) = store.notes
    assert note.startswith("3 entries take up to 100 bytes each, more than the cache may hold")
