"""One file that carries entries to another machine: `cache export` and `cache import`.

    line 1   the format
    line 2   sha256 of all that follows, in hexadecimal
    rest     an uncompressed tar: <level>/<key>/entry.json and <level>/<key>/files/...

Equal entries give equal files. The digest is compared before anything is unpacked, and each
file with its own digest on the way into the store.
"""

import hashlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from mlc_compile.artifact import describe
from mlc_compile.cache.key import ENTRY, FILES, LEVELS, Entry, read_entry
from mlc_compile.cache.store import Held, Store
from mlc_compile.errors import ConfigError, DamageError

MAGIC: Final = b"mlc-compile cache 1\n"
DIGEST: Final = 64  # hexadecimal digits of a sha256
START: Final = len(MAGIC) + DIGEST + 1
BLOCK: Final = 1 << 20
IMPORT: Final = "import"  # the lock of those that unpack


def export_entries(store: Store, out: Path) -> tuple[Entry, ...]:
    """Write all sound entries into the file `out`; what was written.

    The file appears when it is whole. OSError where it cannot be written.
    """
    held = sorted(store.held(), key=lambda one: (one.entry.key.level, one.directory.name))
    with _replaced(out) as file:
        file.write(MAGIC + b"0" * DIGEST + b"\n")
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            written = tuple(one.entry for one in held if _packed(store, tar, one))
        digest = _digest_from(file, START)
        file.seek(len(MAGIC))
        file.write(digest.encode())
    return written


def import_entries(store: Store, bundle: Path) -> tuple[Entry, ...]:
    """Put the entries of a bundle into the store; those that were new to it.

    Raises ConfigError where it is no bundle, DamageError where it is a damaged one, and
    OSError where the store cannot be written.
    """
    with bundle.open("rb") as file:
        _check(file, bundle)
        file.seek(START)
        with _room(store) as aside:
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    _unpack(tar, aside)
            except (tarfile.TarError, ValueError) as e:
                raise DamageError(f"{bundle} cannot be unpacked: {e}", hint=_AGAIN) from e
            return tuple(_take_in(store, aside, bundle))


@contextmanager
def _room(store: Store) -> Iterator[Path]:
    """A directory on the disk of the store; if we die, the next collection removes it."""
    with store.locked(IMPORT):
        store.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store.scratch, prefix=f"{IMPORT}.") as directory:
            yield Path(directory)


@contextmanager
def _replaced(out: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `out` when the block has succeeded."""
    if out.is_dir():
        raise ConfigError(f"{out} is a directory, a bundle is a file", hint="name a file in it")
    aside = out.with_name(f".{out.name}.partial")
    try:
        with aside.open("w+b") as file:
            yield file
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


def _packed(store: Store, tar: tarfile.TarFile, held: Held) -> bool:
    """Add one entry, which nobody collects meanwhile; False if it is damaged, or gone already."""
    with store.locked(held.directory.name):
        return _pack(tar, held)


def _pack(tar: tarfile.TarFile, held: Held) -> bool:
    files = held.directory / FILES
    if any(not _is_sound(files, held.entry, file.path) for file in held.entry.files):
        return False
    stem = f"{held.entry.key.level}/{held.directory.name}"
    _put(tar, held.directory / ENTRY, f"{stem}/{ENTRY}")
    for file in held.entry.files:
        _put(tar, files / file.path, f"{stem}/{FILES}/{file.path}")
    return True


def _is_sound(files: Path, entry: Entry, path: str) -> bool:
    return (files / path).is_file() and describe(files / path, path) == entry.file(path)


def _put(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """A member that says nothing of owner, mode or time."""
    info = tarfile.TarInfo(name)
    info.size = path.stat().st_size
    with path.open("rb") as file:
        tar.addfile(info, file)


def _unpack(tar: tarfile.TarFile, directory: Path) -> None:
    """Plain files with plain paths: whoever made the bundle may have made its digest too."""
    for member in tar:
        path = directory / member.name
        read = tar.extractfile(member) if member.isreg() else None
        if read is None or not path.resolve().is_relative_to(directory.resolve()):
            raise ValueError(f"it holds {member.name!r}, which is no file of an entry")
        path.parent.mkdir(parents=True, exist_ok=True)
        with read, path.open("xb") as write:
            shutil.copyfileobj(read, write, BLOCK)


def _check(file: BinaryIO, bundle: Path) -> None:
    if file.read(len(MAGIC)) != MAGIC:
        raise ConfigError(
            f"{bundle} is no cache bundle", hint="give a file that `mlc-compile cache export` wrote"
        )
    stated = file.read(DIGEST + 1)
    if stated != _digest_from(file, START).encode() + b"\n":
        raise DamageError(f"{bundle} is damaged: it does not have its digest", hint=_AGAIN)


def _digest_from(file: BinaryIO, start: int) -> str:
    file.seek(start)
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    file.seek(0, io.SEEK_END)
    return digest.hexdigest()


def _take_in(store: Store, aside: Path, bundle: Path) -> Iterator[Entry]:
    for level in LEVELS:
        for directory in sorted((aside / level).glob("*")):
            try:
                entry = read_entry(directory)
            except FileNotFoundError as e:
                raise DamageError(f"{bundle} lacks {e.filename}", hint=_AGAIN) from e
            for file in entry.files:
                if not _is_sound(directory / FILES, entry, file.path):
                    raise DamageError(f"{bundle}: {file.path} is damaged", hint=_AGAIN)
            with store.locked(entry.key.digest):
                if store.find(entry.key) is None:
                    store.add(entry.key, directory / FILES, entry.files)
                    if store.has(entry.key):
                        yield entry
            shutil.rmtree(directory)


_AGAIN: Final = "copy or export it again"
