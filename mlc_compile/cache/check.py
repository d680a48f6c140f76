"""Looking at a whole store: what it holds, and whether all of it is still what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlc_compile.cache.damage import fault
from mlc_compile.cache.ground import is_there
from mlc_compile.cache.key import LEVELS, Level
from mlc_compile.cache.store import Store


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
        reason = fault(directory)
        damaged = reason is not None and is_there(directory)
        yield directory, Damaged(directory, reason or "") if damaged else None


def repair(store: Store, directory: Path) -> None:
    """Remove an entry, unless a build has made it again meanwhile."""
    with store.locked(directory.name):
        if fault(directory) is not None:
            store.remove(directory)
