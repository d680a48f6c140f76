"""How an entry gets into the store: room is made, it is put together aside, then renamed."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlc_compile.cache.copy import copy_in
from mlc_compile.cache.ground import is_there, make_directory
from mlc_compile.cache.key import ENTRY, FILES, Entry, Level, write_entry
from mlc_compile.staging import delete, sync

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
NO_SPACE: Final = "and too little space is left on the cache's disk: not kept"
# Levels that are made again in a moment: not worth waiting for the disk. What a power cut makes
# of them is seen when they are read, as all damage is.
CHEAP: Final[frozenset[Level]] = frozenset({"limits", "proof", "kernel"})


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
            store.said.tell_unkept(entry, NO_SPACE)


def _made_room(store: "Store", entry: Entry) -> bool:
    """Whether there is room for `entry`, once what served least recently made some.

    The cache never takes the half of a disk that is left.
    """
    make_directory(store.root, store.root)
    if entry.nbytes > store.limit:
        most = f"more than the cache may hold ({store.limit:,} bytes)"
        store.said.tell_unkept(entry, f"{most}: not kept; raise --cache-size")
        return False
    lacking = _lacking(store, entry)
    if lacking > 0:
        total = sum(one.entry.nbytes for one in store.held())
        if lacking <= total:
            store.collect(min(store.limit, total - lacking))
            lacking = _lacking(store, entry)
    if lacking > 0:
        store.said.tell_unkept(entry, NO_SPACE)
    return lacking <= 0


def _lacking(store: "Store", entry: Entry) -> int:
    """Bytes that must become free before `entry` may be kept."""
    return 2 * entry.nbytes - shutil.disk_usage(store.root).free


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
