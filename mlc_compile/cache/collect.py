"""Keeping a store small, and clear of what killed processes and strangers left in it."""

from typing import TYPE_CHECKING

from mlc_compile.cache.key import Entry
from mlc_compile.cache.lock import unless_locked
from mlc_compile.staging import delete

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store


def collect(store: "Store", limit: int) -> tuple[tuple[Entry, ...], int]:
    """Remove what served least recently until the rest fits `limit` bytes.

    What was removed, and the bytes that are left. Entries that somebody works with stay; what
    cannot be read goes, since no build would find it.
    """
    there, held = store.directories(), store.held()
    for directory in set(there) - {one.directory for one in held}:
        with unless_locked(store, directory.name) as free:
            if free:
                store.remove(directory)
    total = sum(one.entry.nbytes for one in held)
    removed = []
    for one in held:
        if total <= limit:
            break
        with unless_locked(store, one.directory.name) as free:
            if free:
                store.remove(one.directory)
                removed.append(one.entry)
                total -= one.entry.nbytes
    _clear_leftovers(store)
    return tuple(removed), total


def _clear_leftovers(store: "Store") -> None:
    """What killed processes left in `scratch`, and locks that nobody holds."""
    left = store.scratch.iterdir() if store.scratch.is_dir() else ()
    for path in left:
        with unless_locked(store, path.name.partition(".")[0] or "gone") as free:
            if free:
                delete(path)
    for path in store.locks.iterdir() if store.locks.is_dir() else ():
        with unless_locked(store, path.name):
            pass
