"""Looking at the whole store."""

import errno
import os

import pytest

from mlc_compile.cache import damage as module
from mlc_compile.cache.check import check, count, repair
from mlc_compile.cache.key import ENTRY, FILES


def test_levels_are_counted(store, put):
    put(store, "a", {"f": bytes(10)})
    put(store, "b", {"f": bytes(20), "g": bytes(5)})
    put(store, "c", {"f": bytes(1)}, level="packed")
    counted = {one.level: (one.entries, one.nbytes) for one in count(store)}
    assert counted["library"] == (2, 35)
    assert counted["packed"] == (1, 1)
    assert counted["weights"] == (0, 0)


DAMAGE = {
    "a flipped bit": (lambda e: (e / FILES / "f").write_bytes(b"\1" * 9), "not have its digest"),
    "a file that is gone": (lambda e: (e / FILES / "f").unlink(), "f is missing"),
    "a file too many": (lambda e: (e / FILES / "g").write_bytes(b""), "g does not belong to it"),
    "no entry": (lambda e: (e / ENTRY).unlink(), "it has no entry.json"),
    "an entry of others": (lambda e: (e / ENTRY).write_bytes(b"{}"), "is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_named(store, put, kind):
    spoil, told = DAMAGE[kind]
    put(store, "a", {"f": bytes(9)}, level="packed")
    put(store, "b", {"f": bytes(9)})
    directory = next(d for d in store.directories() if d.parent.name == "packed")
    spoil(directory)
    (found,) = [damaged for _directory, damaged in check(store) if damaged is not None]
    assert found.directory == directory
    assert told in found.reason


def test_a_file_that_cannot_be_read_is_damage_and_repaired(store, put, monkeypatch):
    put(store, "a", {"f": bytes(9)}, level="packed")
    put(store, "b", {"f": bytes(9)})

    def describe(path, name):
        if "packed" in path.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return describe_file(path, name)

    describe_file = module.describe
    monkeypatch.setattr(module, "describe", describe)
    (found,) = [damaged for _directory, damaged in check(store) if damaged is not None]
    assert found.reason == f"{found.directory / FILES / 'f'}: input/output error"
    repair(store, found.directory)
    assert [damaged for _directory, damaged in check(store)] == [None]


def test_what_may_not_be_read_is_no_damage_and_stays(store, put, monkeypatch):
    def describe(path, _name):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    put(store, "a", {"f": bytes(9)})
    (directory,) = store.directories()
    monkeypatch.setattr(module, "describe", describe)
    with pytest.raises(PermissionError):
        list(check(store))
    with pytest.raises(PermissionError):
        repair(store, directory)
    assert directory.is_dir()


def test_a_sound_store_and_an_empty_one_have_no_damage(store, put):
    assert list(check(store)) == []
    put(store, "a", {"f": bytes(9)})
    assert [damaged for _directory, damaged in check(store)] == [None]


def test_an_entry_that_is_collected_while_it_is_read_is_no_damage(store, put, monkeypatch):
    put(store, "a", {"f": bytes(9)})
    read_entry = module.read_entry

    def read_and_lose(directory):
        entry = read_entry(directory)
        store.collect(0)
        return entry

    monkeypatch.setattr(module, "read_entry", read_and_lose)
    assert [damaged for _directory, damaged in check(store)] == [None]


def test_repair_removes_what_is_damaged_and_leaves_what_was_made_again(store, put):
    key = put(store, "a", {"f": bytes(9)})
    (directory,) = store.directories()
    (directory / FILES / "f").unlink()
    repair(store, directory)
    assert store.directories() == ()
    put(store, "a", {"f": bytes(9)})
    repair(store, directory)
    assert store.find(key) is not None
    store.collect(0)
    repair(store, directory)  # gone already
    assert store.directories() == ()
