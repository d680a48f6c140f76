"""The store of entries: find, restore, add, collect; in every trouble it steps aside.

A store that cannot be written, because it is read-only or its disk is full, says so once in
`notes` and is read from as far as that goes; a damaged entry is removed, said, and is a miss.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from mlc_compile.artifact import File
from mlc_compile.cache.collect import collect
from mlc_compile.cache.copy import Unreadable, copy_out
from mlc_compile.cache.damage import discard
from mlc_compile.cache.ground import (
    is_file,
    is_there,
    make_directory,
    require_directories,
)
from mlc_compile.cache.keep import FULL, NO_SPACE, keep, room_for
from mlc_compile.cache.key import ENTRY, FILES, LEVELS, Entry, Key, read_entry
from mlc_compile.cache.notes import Notes
from mlc_compile.errors import DamageError
from mlc_compile.progress import SILENT, Progress
from mlc_compile.staging import delete
from mlc_compile.staging.lock import acquire, release

FORMAT: Final = "1"  # of the directories and of `entry.json`; another version has its own
DEFAULT_LIMIT: Final = 20 << 30  # bytes: the weights of an 8B model take 4.6e9, twice
KEPT: Final = 0.9  # of the limit, where an entry went beyond it: the next ones find room


@dataclass(frozen=True, slots=True)
class Held:
    """An entry in the store. `used`: when it last served, in nanoseconds since the epoch."""

    entry: Entry
    directory: Path
    used: int


@dataclass(slots=True)
class Store:
    """The build cache under `cache_dir`, kept below `limit` bytes by dropping what served least
    recently.

    `only_looks`: nothing is written, removed or marked as used.
    """

    cache_dir: Path
    limit: int = DEFAULT_LIMIT
    said: Notes = field(default_factory=Notes)
    only_looks: bool = False
    _writable: bool = field(init=False)
    _nbytes: int | None = None  # of all entries, when they were last counted and since
    _held: set[str] = field(default_factory=set)  # names of the locks in our hands

    def __post_init__(self) -> None:
        """Who only looks never begins to write."""
        self._writable = not self.only_looks

    @property
    def notes(self) -> list[str]:
        """What went wrong, each in a sentence for people."""
        return self.said.lines

    @property
    def root(self) -> Path:
        """Where everything lies that has this version's format."""
        return self.cache_dir / "builds" / FORMAT

    @property
    def locks(self) -> Path:
        """One file for each key that somebody works on, or has worked on."""
        return self.root / "locks"

    @property
    def scratch(self) -> Path:
        """For work in progress: `collect` removes `<name>.*` unless the lock `name` is held."""
        return self.root / "scratch"

    def require(self) -> None:
        """EnvironmentError_ where something that is no directory lies in the cache's place."""
        require_directories(self.cache_dir, self.root.parent, self.root)

    def looking(self) -> "Store":
        """The same store for somebody who only looks."""
        return Store(self.cache_dir, self.limit, Notes(self.notes), only_looks=True)

    @contextmanager
    def locked(self, name: str, progress: Progress = SILENT) -> Iterator[None]:
        """Hold the lock called `name` (a key's digest); none where the store is not writable."""
        handle = None
        if self._writable:
            with self.writing():
                make_directory(self.root, self.locks)
                handle = acquire(self.locks / name, wait=False)
                if handle is None:
                    progress.step("waiting for another build of the same")
                    handle = acquire(self.locks / name)
        if handle is None:
            yield
            return
        self._held.add(name)
        try:
            yield
        finally:
            self._held.remove(name)
            release(handle)

    def holds(self, name: str) -> bool:
        """Whether the lock called `name` is in our hands."""
        return name in self._held

    def has(self, key: Key) -> bool:
        """Whether there is an entry of `key`, sound or not."""
        return is_there(self.place(key))

    def fault(self, key: Key) -> str:
        """Why an entry of `key` did not serve, in a sentence; "" where there was none."""
        return self.said.faults.get(key.digest, "")

    def find(self, key: Key) -> Entry | None:
        """The entry of `key`, which now counts as used; its files are looked at later."""
        directory = self.place(key)
        try:
            entry = read_entry(directory)
        except (FileNotFoundError, NotADirectoryError):
            if directory.is_dir():
                self.discard(key, f"it has no {ENTRY}")
            return None
        except DamageError as e:
            self.discard(key, str(e))
            return None
        except OSError as e:  # a disk that fails, or no permission
            reason = (e.strerror or str(e)).lower()
            self.said.faults[key.digest] = f"{directory} cannot be read ({reason})"
            self._give_up(reason)
            return None
        if not self.only_looks:
            with suppress(OSError):
                os.utime(directory / ENTRY)
        return entry

    def read(self, entry: Entry, path: str) -> bytes | None:
        """A small file of an entry, compared with its digest; None, and no entry, if damaged."""
        with suppress(OSError):
            source = self.files(entry) / path
            if is_file(source):
                data = source.read_bytes()
                if hashlib.sha256(data).hexdigest() == entry.file(path).sha256:
                    return data
        self.discard(entry.key, f"{path} is damaged or missing")
        return None

    def restore(self, entry: Entry, directory: Path) -> bool:
        """Copy an entry's files into `directory`; False, and nothing there, if one is damaged."""
        for file in entry.files:
            with suppress(Unreadable):
                if copy_out(self.files(entry) / file.path, directory / file.path, file):
                    continue
            for made in entry.files:
                (directory / made.path).unlink(missing_ok=True)
            self.discard(entry.key, f"{file.path} is damaged or missing")
            return False
        return True

    def add(self, key: Key, directory: Path, files: tuple[File, ...]) -> None:
        """Keep `files` of `directory` under `key`, whose lock the caller holds."""
        if not self._writable:
            return
        entry = Entry(key=key, files=files)
        with room_for(self, entry) as fits:
            if fits:
                self._keep(entry, directory)

    def add_bytes(self, key: Key, name: str, data: bytes) -> None:
        """Keep one small file under `key`, whose lock the caller holds."""
        if not self._writable:
            return
        aside = self.scratch / f"{key.digest}.bytes"
        file = File(path=name, nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        entry = Entry(key=key, files=(file,))
        with room_for(self, entry) as fits:
            if fits:
                try:
                    make_directory(self.root, aside)
                    (aside / name).write_bytes(data)
                    self._keep(entry, aside)
                finally:
                    shutil.rmtree(aside, ignore_errors=True)

    def discard(self, key: Key, why: str, refused: Entry | None = None) -> None:
        """Remove a damaged entry, and say so.

        One that was collected or made again meanwhile is no damage, and one that somebody else
        works on is theirs. `refused`: an entry whose files are sound, but say what no build of
        ours said.
        """
        discard(self, key, why, refused)

    def remove(self, directory: Path) -> None:
        """Remove one of `directories`: out of sight in one step, then file by file.

        Nothing happens if somebody else was faster.
        """
        gone = self.scratch / f"gone.{uuid4().hex}"  # not its name, which may be anything
        make_directory(self.root, self.scratch)
        with suppress(FileNotFoundError):
            directory.rename(gone)
            delete(gone)

    def held(self) -> tuple[Held, ...]:
        """All readable entries, the one that served least recently first."""
        found = []
        for directory in self.directories():
            with suppress(OSError, DamageError):
                used = (directory / ENTRY).stat().st_mtime_ns
                found.append(Held(read_entry(directory), directory, used))
        return tuple(sorted(found, key=lambda one: (one.used, one.directory.name)))

    def directories(self) -> tuple[Path, ...]:
        """All that lies where entries belong, readable or not, by level.

        Something in the place of a level's directory counts too.
        """
        base = self.root / "entries"
        if not base.is_dir():
            return (base,) if is_there(base) else ()
        found: list[Path] = []
        for place in (base / level for level in LEVELS):
            there = [place] if is_there(place) else []
            found += sorted(place.iterdir()) if place.is_dir() else there
        return tuple(found)

    def collect(self, limit: int) -> tuple[Entry, ...]:
        """Remove what served least recently until the rest fits `limit` bytes; what was removed.

        Entries that somebody works with stay. What killed processes left goes too, and what
        cannot be read, which no build would find.
        """
        removed, self._nbytes = collect(self, limit)
        return removed

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What writes to the cache; an OSError ends the writing, not the build."""
        try:
            yield
        except OSError as e:
            if e.errno in FULL and NO_SPACE in self.said.unkept:  # it was told
                self._writable = False
            self._give_up((e.strerror or str(e)).lower())
        except Unreadable:
            self._give_up("what was made cannot be read")

    def _give_up(self, reason: str) -> None:
        if self._writable:
            self.notes.append(
                f"the cache in {self.cache_dir} cannot keep what is made ({reason}): "
                "building without it"
            )
        self._writable = False

    def place(self, key: Key) -> Path:
        """The directory of an entry."""
        return self.root / "entries" / key.level / key.digest

    def files(self, entry: Entry) -> Path:
        """The directory of an entry's files."""
        return self.place(entry.key) / FILES

    def _keep(self, entry: Entry, directory: Path) -> None:
        """The store stays below its limit; looking at all of it now and then is enough."""
        keep(self, entry, directory)
        if self._nbytes is None:
            self.collect(self.limit)
            return
        self._nbytes += entry.nbytes
        if self._nbytes > self.limit:
            self.collect(int(self.limit * KEPT))
