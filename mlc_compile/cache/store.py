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

from mlc_compile.artifact import File, describe
from mlc_compile.cache.collect import collect, tell_too_large
from mlc_compile.cache.copy import Unreadable, copy_in, copy_out, sync
from mlc_compile.cache.ground import (
    delete,
    is_file,
    is_there,
    make_directory,
    require_directories,
)
from mlc_compile.cache.key import ENTRY, FILES, LEVELS, Entry, Key, Level, read_entry, write_entry
from mlc_compile.cache.lock import acquire, release
from mlc_compile.errors import DamageError
from mlc_compile.progress import SILENT, Progress

FORMAT: Final = "1"  # of the directories and of `entry.json`; another version has its own
DEFAULT_LIMIT: Final = 20 << 30  # bytes: the weights of an 8B model take 4.6e9, twice

# Levels that are made again in a moment: not worth waiting for the disk. What a power cut makes
# of them is seen when they are read, as all damage is.
CHEAP: Final[frozenset[Level]] = frozenset({"limits", "proof", "kernel"})


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

    `notes` collects what went wrong, each in a sentence for people. `only_looks`: nothing is
    written, removed or marked as used.
    """

    cache_dir: Path
    limit: int = DEFAULT_LIMIT
    notes: list[str] = field(default_factory=list)
    only_looks: bool = False
    _writable: bool = field(init=False)
    _nbytes: int | None = None  # of all entries, when they were last counted and since
    _unkept: list[Entry] = field(default_factory=list)  # larger than the limit

    def __post_init__(self) -> None:
        """Who only looks never begins to write."""
        self._writable = not self.only_looks

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
        return Store(self.cache_dir, self.limit, self.notes, only_looks=True)

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
        try:
            yield
        finally:
            if handle is not None:
                release(handle)

    def has(self, key: Key) -> bool:
        """Whether there is an entry of `key`, sound or not."""
        return is_there(self._place(key))

    def find(self, key: Key) -> Entry | None:
        """The entry of `key`, which now counts as used; its files are looked at later."""
        directory = self._place(key)
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
            self._give_up((e.strerror or str(e)).lower())
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
        entry = Entry(key=key, files=files)
        if not self._has_room(entry):
            return
        with self.writing():
            scratch = self.scratch / key.digest
            delete(scratch)  # a killed build's
            try:
                self._write(scratch, entry, directory)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            if self._nbytes is not None:
                self._nbytes += entry.nbytes
            if self._nbytes is None or self._nbytes > self.limit:
                self.collect(self.limit)

    def add_bytes(self, key: Key, name: str, data: bytes) -> None:
        """Keep one small file under `key`, whose lock the caller holds."""
        aside = self.scratch / f"{key.digest}.bytes"
        if not self._writable:
            return
        with self.writing():
            try:
                make_directory(self.root, aside)
                (aside / name).write_bytes(data)
                self.add(key, aside, (describe(aside / name, name),))
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def discard(self, key: Key, why: str) -> None:
        """Remove a damaged entry, and say so; one that was collected meanwhile is no damage."""
        if not self.has(key):
            return
        if self.only_looks:
            self.notes.append(f"a {key.level} entry of the cache is damaged ({why})")
            return
        self.notes.append(f"a {key.level} entry of the cache was damaged ({why}); it was removed")
        try:
            self.remove(self._place(key))
        except OSError:
            self.notes[-1] = (
                f"a {key.level} entry of the cache is damaged ({why}) and cannot be removed: "
                f"remove {self._place(key)}"
            )

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
            self._give_up((e.strerror or str(e)).lower())

    def _give_up(self, reason: str) -> None:
        if self._writable:
            self.notes.append(
                f"the cache in {self.cache_dir} cannot keep what is made ({reason}): "
                "building without it"
            )
        self._writable = False

    def _place(self, key: Key) -> Path:
        return self.root / "entries" / key.level / key.digest

    def files(self, entry: Entry) -> Path:
        """The directory of an entry's files."""
        return self._place(entry.key) / FILES

    def _has_room(self, entry: Entry) -> bool:
        """Whether to keep it; the cache never takes the half of a disk that is left."""
        if not self._writable:
            return False
        if entry.nbytes > self.limit:
            tell_too_large(self.notes, self._unkept, entry, self.limit)
            return False
        with self.writing():
            make_directory(self.root, self.root)
            if shutil.disk_usage(self.root).free < 2 * entry.nbytes:
                self._give_up("too little space is left on its disk")
        return self._writable

    def _write(self, scratch: Path, entry: Entry, directory: Path) -> None:
        """Put an entry together in `scratch` and rename it to its place."""
        place = self._place(entry.key)
        make_directory(self.root, scratch / FILES)
        make_directory(self.root, place.parent)
        for file in entry.files:
            copy_in(directory / file.path, scratch / FILES / file.path)
        write_entry(scratch, entry)
        if is_there(place):
            self.remove(place)
        if entry.key.level in CHEAP:
            scratch.rename(place)
            return
        made = [scratch / FILES / file.path for file in entry.files]
        for path in (*made, scratch / ENTRY, scratch / FILES, scratch):
            sync(path)
        scratch.rename(place)
        sync(place.parent)
