"""Looking at a whole store: what it holds, and whether all of it is still what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlc_compile.artifact import describe
from mlc_compile.cache.ground import is_file, is_there
from mlc_compile.cache.key import ENTRY, FILES, LEVELS, Entry, Level, read_entry
from mlc_compile.cache.store import Store
from mlc_compile.errors import DamageError


@dataclass(frozen=True, slots=True)
class Count:
    """Entries of one level and the bytes of their files."""

    level: Level
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that is not as it was written."""

    directory: Path
    reason: str


def count(store: Store) -> tuple[Count, ...]:
    """What the store holds, by level."""
    held = [one.entry for one in store.held()]
    of = {level: [entry for entry in held if entry.key.level == level] for level in LEVELS}
    return tuple(Count(level, len(of[level]), sum(e.nbytes for e in of[level])) for level in LEVELS)


def check(store: Store) -> Iterator[tuple[Path, Damaged | None]]:
    """Read every byte of every entry, one entry at a time; None where it is sound.

    One that was collected meanwhile is no damage.
    """
    for directory in store.directories():
        reason = _fault(directory)
        damaged = reason is not None and is_there(directory)
        yield directory, Damaged(directory, reason or "") if damaged else None


def repair(store: Store, directory: Path) -> None:
    """Remove an entry, unless a build has made it again meanwhile."""
    with store.locked(directory.name):
        if _fault(directory) is not None:
            store.remove(directory)


def _fault(directory: Path) -> str | None:
    try:
        entry = read_entry(directory)
        return next(_wrong_files(directory / FILES, entry), None)
    except FileNotFoundError:
        return f"it has no {ENTRY}"
    except DamageError as e:
        return str(e)
    except NotADirectoryError:  # it was replaced while we looked
        return "it is no entry"


def _wrong_files(files: Path, entry: Entry) -> Iterator[str]:
    for file in entry.files:
        path = files / file.path
        if not is_file(path):
            yield f"{file.path} is missing"
        elif describe(path, file.path) != file:
            yield f"{file.path} does not have its digest"
    known = {file.path for file in entry.files}
    for path in sorted(files.rglob("*")):
        if not path.is_dir() and path.relative_to(files).as_posix() not in known:
            yield f"{path.relative_to(files).as_posix()} does not belong to it"
