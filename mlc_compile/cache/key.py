"""Keys by named components, and entries: what a key led to, sealed against a flipped bit."""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, get_args

import msgspec

from mlc_compile.artifact import SEAL, File, Struct, pretty_json, seal_of
from mlc_compile.cache.ground import is_file, is_there
from mlc_compile.errors import DamageError

Level = Literal["weights", "limits", "questions", "library", "packed", "proof", "kernel"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
ENTRY: Final = "entry.json"
FILES: Final = "files"


class Key(Struct, frozen=True):
    """Everything that decides the bytes of a step: component -> value or digest."""

    level: Level
    parts: dict[str, str]

    @property
    def digest(self) -> str:
        """sha256 over level and components in sorted order: the name of the entry."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def differences(self, other: "Key") -> tuple[str, ...]:
        """Components that only one has or that differ, sorted."""
        return tuple(sorted(_differing(self.parts, other.parts)))


class Entry(Struct, frozen=True):
    """What a key led to: files by their path, each with its digest."""

    key: Key
    files: tuple[File, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def file(self, path: str) -> File:
        """The file at `path`; DamageError where the entry has none."""
        found = next((file for file in self.files if file.path == path), None)
        if found is None:
            raise DamageError(f"a {self.key.level} entry lacks {path}", hint=REPAIR)
        return found


def write_entry(directory: Path, entry: Entry) -> None:
    """Write `entry.json` into an entry's directory."""
    raw = msgspec.to_builtins(entry)
    (directory / ENTRY).write_bytes(pretty_json({**raw, SEAL: seal_of(raw)}))


def read_entry(directory: Path) -> Entry:
    """The entry in a directory that is named after its key.

    Raises DamageError if it does not say what was written, FileNotFoundError if it is gone.
    """
    path = directory / ENTRY
    if is_there(path if directory.is_dir() else directory) and not is_file(path):
        raise DamageError(f"{directory} is no entry", hint=REPAIR)
    try:
        raw: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        seal = raw.pop(SEAL, None)
        entry = msgspec.convert(raw, Entry)
    except (msgspec.DecodeError, RecursionError) as e:
        raise DamageError(f"{path} is damaged: {e}", hint=REPAIR) from e
    paths = [file.path for file in entry.files]
    plain = len(set(paths)) == len(paths) and all(map(_is_plain, paths))
    if seal != seal_of(raw) or entry.key.digest != directory.name or not plain:
        raise DamageError(f"{path} is not as it was written", hint=REPAIR)
    return entry


def _is_plain(path: str) -> bool:
    """Whether it is the one way to write a path below a directory."""
    pure = PurePosixPath(path)
    inside = not pure.is_absolute() and ".." not in pure.parts and path != "."
    return inside and pure.as_posix() == path


def _differing(one: dict[str, str], other: dict[str, str]) -> Iterator[str]:
    yield from (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


REPAIR: Final = "run `mlc-compile cache verify --repair`"
