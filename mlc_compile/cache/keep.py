"""How an entry gets into the store: put together in its scratch, and renamed to its place."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlc_compile.cache.copy import copy_in
from mlc_compile.cache.ground import is_there, make_directory
from mlc_compile.cache.key import ENTRY, FILES, Entry, Level, write_entry
from mlc_compile.staging import delete, sync

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store

# Levels that are made again in a moment: not worth waiting for the disk. What a power cut makes
# of them is seen when they are read, as all damage is.
CHEAP: Final[frozenset[Level]] = frozenset({"limits", "proof", "kernel"})


def keep(store: "Store", entry: Entry, directory: Path) -> None:
    """Put the files of `directory` under the key of `entry`, whose lock the caller holds.

    Raises Unreadable for the files, and OSError where the cache cannot be written.
    """
    scratch = store.scratch / entry.key.digest
    delete(scratch)  # a killed build's
    try:
        _write(store, scratch, entry, directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(store: "Store", scratch: Path, entry: Entry, directory: Path) -> None:
    place = store.place(entry.key)
    make_directory(store.root, scratch / FILES)
    make_directory(store.root, place.parent)
    for file in entry.files:
        copy_in(directory / file.path, scratch / FILES / file.path)
    write_entry(scratch, entry)
    if is_there(place):
        store.remove(place)
    if entry.key.level in CHEAP:
        scratch.rename(place)
        return
    made = [scratch / FILES / file.path for file in entry.files]
    for path in (*made, scratch / ENTRY, scratch / FILES, scratch):
        sync(path)
    scratch.rename(place)
    sync(place.parent)
