"""What is wrong with an entry, and how one that is goes, unless it was made again meanwhile."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_compile.artifact import describe
from mlc_compile.cache.ground import is_file
from mlc_compile.cache.key import ENTRY, FILES, Entry, Key, read_entry
from mlc_compile.cache.lock import unless_locked
from mlc_compile.errors import DamageError

if TYPE_CHECKING:
    from mlc_compile.cache.store import Store


def fault(directory: Path) -> str | None:
    """What is wrong with the entry in `directory`, every byte read; None: nothing.

    PermissionError where we may not look: that is no damage.
    """
    try:
        entry = read_entry(directory)
        return next(_wrong_files(directory / FILES, entry), None)
    except FileNotFoundError:
        return f"it has no {ENTRY}"
    except DamageError as e:
        return str(e)
    except NotADirectoryError:  # it was replaced while we looked
        return "it is no entry"
    except PermissionError:  # nobody knows
        raise
    except OSError as e:
        return f"{e.filename or directory}: {(e.strerror or str(e)).lower()}"


def discard(store: "Store", key: Key, why: str, refused: Entry | None) -> None:
    """Remove the entry of `key`, if it still does not serve and nobody else works on it.

    What was done, or must be, is noted. `refused`: see `Store.discard`.
    """
    if not store.has(key):
        return
    told = f"a {key.level} entry of the cache is damaged ({why})"
    if store.only_looks:
        store.said.tell_damage(key, told)
        return
    directory, name = store.place(key), key.digest
    try:
        with nullcontext(True) if store.holds(name) else unless_locked(store, name) as free:
            if not free or not _is_still_wrong(directory, refused):
                moment = f"its entry could not be read a moment ago ({why})"
                store.said.faults[key.digest] = moment  # nothing to do about it: no note
                return
            store.remove(directory)
    except OSError:
        store.said.tell_damage(key, f"{told} and cannot be removed: remove {directory}")
        return
    removed = f"a {key.level} entry of the cache was damaged ({why}); it was removed"
    store.said.tell_damage(key, removed)


def _is_still_wrong(directory: Path, refused: Entry | None) -> bool:
    if refused is None:
        return fault(directory) is not None
    try:
        return read_entry(directory) == refused
    except (OSError, DamageError):
        return True


def _wrong_files(files: Path, entry: Entry) -> Iterator[str]:
    for file in entry.files:
        path = files / file.path
        if not is_file(path):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.stat()  # whether we may look
            yield f"{file.path} is missing"
        elif describe(path, file.path) != file:
            yield f"{file.path} does not have its digest"
    known = {file.path for file in entry.files}
    for path in sorted(files.rglob("*")):
        if not path.is_dir() and path.relative_to(files).as_posix() not in known:
            yield f"{path.relative_to(files).as_posix()} does not belong to it"
