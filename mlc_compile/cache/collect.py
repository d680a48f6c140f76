"""Keeping a store small, and clear of what killed processes and strangers left in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlc_compile.cache.ground import delete, make_directory
from mlc_compile.cache.key import Entry
from mlc_compile.cache.lock import try_lock

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store


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


def tell_too_large(notes: list[str], before: list[Entry], entry: Entry, limit: int) -> None:
    """Add `entry` to those that were larger than the limit: one note speaks of all of them."""
    old = _too_large(before, limit)
    before.append(entry)
    if old in notes:
        notes.remove(old)
    notes.append(_too_large(before, limit))


def _too_large(entries: Sequence[Entry], limit: int) -> str:
    """The note that `entries`, each larger than the limit, were not kept; "" for none."""
    if not entries:
        return ""
    most = max(entry.nbytes for entry in entries)
    what = f"the {entries[0].key.level} entry takes {most:,} bytes"
    if len(entries) > 1:
        what = f"{len(entries)} entries take up to {most:,} bytes each"
    return f"{what}, more than the cache may hold ({limit:,} bytes): not kept; raise --cache-size"


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
