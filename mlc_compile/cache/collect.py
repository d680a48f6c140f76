"""Keeping a store small, and clear of what killed processes and strangers left in it."""

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mlc_compile.cache.ground import make_directory
from mlc_compile.cache.key import Entry
from mlc_compile.cache.lock import try_lock
from mlc_compile.staging import delete

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
NO_SPACE: Final = "and too little space is left on the cache's disk: not kept"


def collect(store: "Store", limit: int) -> tuple[tuple[Entry, ...], int]:
    """Remove what served least recently until the rest fits `limit` bytes.

    What was removed, and the bytes that are left. Entries that somebody works with stay; what
    cannot be read goes, since no build would find it.
    """
    there, held = store.directories(), store.held()
    for directory in set(there) - {one.directory for one in held}:
        with _unless_locked(store, directory.name) as free:
            if free:
                store.remove(directory)
    total = sum(one.entry.nbytes for one in held)
    removed = []
    for one in held:
        if total <= limit:
            break
        with _unless_locked(store, one.directory.name) as free:
            if free:
                store.remove(one.directory)
                removed.append(one.entry)
                total -= one.entry.nbytes
    _clear_leftovers(store)
    return tuple(removed), total


@contextmanager
def room_for(store: "Store", entry: Entry) -> Iterator[bool]:
    """Whether `entry` may be kept; a disk that is full all the same costs this entry alone."""
    fits = False
    with _full_disk_told(store, entry):
        fits = _made_room(store, entry)
    with _full_disk_told(store, entry):
        yield fits


@contextmanager
def _full_disk_told(store: "Store", entry: Entry) -> Iterator[None]:
    with store.writing():
        try:
            yield
        except OSError as e:
            if e.errno not in FULL:
                raise
            _tell_unkept(store, entry, NO_SPACE)


def _made_room(store: "Store", entry: Entry) -> bool:
    """Whether there is room for `entry`, once what served least recently made some.

    The cache never takes the half of a disk that is left.
    """
    make_directory(store.root, store.root)
    if entry.nbytes > store.limit:
        most = f"more than the cache may hold ({store.limit:,} bytes)"
        _tell_unkept(store, entry, f"{most}: not kept; raise --cache-size")
        return False
    lacking = _lacking(store, entry)
    if lacking > 0:
        total = sum(one.entry.nbytes for one in store.held())
        if lacking <= total:
            store.collect(min(store.limit, total - lacking))
            lacking = _lacking(store, entry)
    if lacking > 0:
        _tell_unkept(store, entry, NO_SPACE)
    return lacking <= 0


def _lacking(store: "Store", entry: Entry) -> int:
    """Bytes that must become free before `entry` may be kept."""
    return 2 * entry.nbytes - shutil.disk_usage(store.root).free


def _tell_unkept(store: "Store", entry: Entry, why: str) -> None:
    """One note speaks of all entries that were not kept for one reason."""
    before = store.unkept.setdefault(why, [])
    old = _unkept(before, why)
    before.append(entry)
    if old in store.notes:
        store.notes.remove(old)
    store.notes.append(_unkept(before, why))


def _unkept(entries: Sequence[Entry], why: str) -> str:
    """The note that `entries` were not kept; "" for none."""
    if not entries:
        return ""
    most = max(entry.nbytes for entry in entries)
    what = f"the {entries[0].key.level} entry takes {most:,} bytes"
    if len(entries) > 1:
        what = f"{len(entries)} entries take up to {most:,} bytes each"
    return f"{what}, {why}"


@contextmanager
def _unless_locked(store: "Store", name: str) -> Iterator[bool]:
    """Whether nobody works on what `name` locks, nobody being able to begin meanwhile."""
    path = store.locks / name
    make_directory(store.root, store.locks)
    with try_lock(path) as free:
        yield free
        if free:
            path.unlink(missing_ok=True)  # whoever waits for it sees that and makes another


def _clear_leftovers(store: "Store") -> None:
    """What killed processes left in `scratch`, and locks that nobody holds."""
    left = store.scratch.iterdir() if store.scratch.is_dir() else ()
    for path in left:
        with _unless_locked(store, path.name.partition(".")[0] or "gone") as free:
            if free:
                delete(path)
    for path in store.locks.iterdir() if store.locks.is_dir() else ():
        with _unless_locked(store, path.name):
            pass
