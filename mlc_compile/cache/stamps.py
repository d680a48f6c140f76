"""Digests of files, remembered by what `stat` says, so that a gigabyte is hashed once.

A stamp is trusted only while size, modification and change time, inode and device are the
same; the change time cannot be set back by a program. A file touched within the last two
seconds is not remembered: it could change again within one tick of the file system's clock.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.artifact import File, describe
from mlc_compile.cache.ground import make_directory
from mlc_compile.staging import delete, replaced
from mlc_compile.staging.lock import try_lock

FILE: Final = "stamps.json"
SETTLED: Final = 2_000_000_000  # nanoseconds
MOST: Final = 5000  # stamps kept; beyond it those of files that are gone are dropped


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """A file as `stat` saw it, and its digest."""

    size: int
    modified: int  # nanoseconds, as `changed`
    changed: int
    inode: int
    device: int
    sha256: str


@dataclass(slots=True)
class Stamps:
    """The stamps of one cache; `root` None: of this process alone."""

    root: Path | None = None
    _known: dict[str, Stamp] = field(default_factory=dict)
    _hashed: set[str] = field(default_factory=set)  # by this process
    _digests: dict[str, str] = field(default_factory=dict)  # of inputs, as first answered
    _seen: dict[str, Stamp] = field(default_factory=dict)  # inputs as they were at first
    _places: dict[Path, str] = field(default_factory=dict)  # where inputs really are, likewise
    _dirty: bool = False

    def __post_init__(self) -> None:
        """Read what earlier processes left; a damaged file is the same as none."""
        if self.root is not None:
            self._known = _read(self.root)

    def watch(self, inputs: Iterable[Path]) -> None:
        """Look at inputs before they are read: `changed` tells whether they are still so.

        One that cannot be looked at is left to `digest`.
        """
        for path in inputs:
            with suppress(OSError):
                self._see(self._place(path))

    def digest(self, path: Path) -> str:
        """sha256 of an input, from memory if its stamp fits. OSError if it cannot be read.

        The first answer stays: what is made later is made of what was read then.
        """
        name = self._place(path)
        if name not in self._digests:
            self._see(name)
            self._digests[name] = self._stamp(name).sha256
        return self._digests[name]

    def matches(self, path: Path, sha256: str) -> bool:
        """Whether a file of ours is there with this digest, likewise."""
        try:
            return self._stamp(os.path.realpath(path)).sha256 == sha256
        except OSError:
            return False

    def remember(self, directory: Path, files: tuple[File, ...], seen: Path | None = None) -> None:
        """Take digests of files that this process wrote, or just compared with them.

        `seen`: another directory with links to them, which nobody else can replace.
        """
        for file in files:
            name = os.path.realpath(directory / file.path)
            look = name if seen is None else os.path.realpath(seen / file.path)
            self._known[name] = msgspec.structs.replace(_look(look), sha256=file.sha256)
            self._dirty = True

    def distrust(self, inputs: Iterable[Path]) -> None:
        """Forget the digests of `inputs` that another process worked out.

        How they were at first stays: what was made since may be made of that.
        """
        for path in inputs:
            name = self._place(path)
            if name not in self._hashed:
                self._known.pop(name, None)
                self._digests.pop(name, None)

    def changed(self, inputs: Iterable[Path]) -> Path | None:
        """An input that is no longer as it was when first looked at; None: all are."""
        return next((path for path in inputs if not self._still(path)), None)

    def save(self) -> None:
        """Leave the stamps to later processes; of two that save at once, one does.

        OSError where the cache cannot be written.
        """
        if self.root is None or not self._dirty:
            return
        make_directory(self.root, self.root)
        with try_lock(self.root / f"{FILE}.lock") as free:
            if free:
                self._write(self.root)
        self._dirty = False

    def _write(self, root: Path) -> None:
        known = _read(root) | self._known
        kept = {name: stamp for name, stamp in known.items() if _is_text(name)}
        if len(kept) > MOST:
            kept = {name: stamp for name, stamp in kept.items() if os.path.exists(name)}
        aside = root / f"{FILE}.new"  # ours alone: we hold the lock
        delete(aside)
        if (root / FILE).is_dir():  # nobody of us made it
            delete(root / FILE)
        with replaced(root / FILE, aside) as file:
            file.write(msgspec.json.encode(kept))

    def _stamp(self, name: str) -> Stamp:
        now = _look(name)
        known = self._known.get(name)
        if known is None or msgspec.structs.replace(known, sha256="") != now:
            return self._hash(name, now)
        return known

    def _place(self, path: Path) -> str:
        if path not in self._places:
            self._places[path] = os.path.realpath(path)
        return self._places[path]

    def _see(self, name: str) -> None:
        if name not in self._seen:
            self._seen[name] = _look(name)

    def _still(self, path: Path) -> bool:
        name = os.path.realpath(path)
        if name != self._places.get(path):
            return False  # a link that leads elsewhere by now
        try:
            return _look(name) == self._seen.get(name)
        except OSError:
            return False

    def _hash(self, name: str, before: Stamp) -> Stamp:
        sha256 = describe(Path(name), name).sha256
        stamp = msgspec.structs.replace(before, sha256=sha256)
        self._hashed.add(name)
        newest = max(before.modified, before.changed)
        if _look(name) == before and time.time_ns() - newest > SETTLED:
            self._known[name] = stamp
            self._dirty = True
        else:
            self._known.pop(name, None)
        return stamp


def _read(root: Path) -> dict[str, Stamp]:
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=dict[str, Stamp])
    except (OSError, msgspec.DecodeError):
        return {}


def _is_text(name: str) -> bool:
    """Whether JSON can hold it: a path may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _look(name: str) -> Stamp:
    seen = os.stat(name)
    return Stamp(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev, "")
