"""One file that carries entries to another machine: `cache export` and `cache import`.

    line 1   the format
    line 2   sha256 of all that follows, in hexadecimal
    rest     an uncompressed tar: <level>/<key>/entry.json and <level>/<key>/files/...,
             and beside/..., files of others that travel along

Equal entries and files give equal bundles. The digest is compared before anything is unpacked,
and each file of an entry with its own digest on the way into the store.
"""

import errno
import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import BinaryIO, Final

from mlc_compile.artifact import describe
from mlc_compile.cache.ground import is_file, is_there
from mlc_compile.cache.key import ENTRY, FILES, LEVELS, Entry, read_entry
from mlc_compile.cache.room import held_directory
from mlc_compile.cache.store import Held, Store
from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.staging import delete, replaced

MAGIC: Final = b"mlc-compile cache 1\n"
DIGEST: Final = 64  # hexadecimal digits of a sha256
# What must not be replaced by a file.
KINDS: Final[dict[Callable[[Path], bool], str]] = {
    Path.is_symlink: "a symbolic link that leads nowhere",
    Path.is_dir: "a directory",
    Path.is_char_device: "a device",
    Path.is_block_device: "a device",
    Path.is_fifo: "a pipe",
    Path.is_socket: "a socket",
}
START: Final = len(MAGIC) + DIGEST + 1
BLOCK: Final = 1 << 20
LONGEST: Final = 120  # characters of a member's name that people are shown
LEVEL: Final = "|".join(LEVELS)
BESIDE: Final = "beside"
NAME: Final = re.compile(
    rf"({LEVEL})/[0-9a-f]{{64}}/({re.escape(ENTRY)}|{FILES}/.+)|{BESIDE}/.+", re.DOTALL
)
# What a member's name can do to a file system: twice the same, a file as a directory, too long.
ITS_FAULTS: Final = (
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
)
NONE: Final[Mapping[str, bytes]] = MappingProxyType({})
IMPORT: Final = "import"  # the lock of those that unpack


def export_entries(
    store: Store, out: Path, beside: Mapping[str, bytes] = NONE
) -> tuple[Entry, ...]:
    """Write all sound entries into the file `out`; what was written.

    `beside` are small files of others, by their path, which `import_entries` hands back. The
    bundle appears when it is whole, and takes the place of a file only, behind a symbolic link
    too. ConfigError where `out` is something else, OSError where it cannot be written.
    """
    held = sorted(store.held(), key=lambda one: (one.entry.key.level, one.directory.name))
    with _replaced(out) as file:
        file.write(MAGIC + b"0" * DIGEST + b"\n")
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            written = tuple(one.entry for one in held if _packed(store, tar, one))
            for name, data in sorted(beside.items()):
                _add(tar, f"{BESIDE}/{name}", io.BytesIO(data), len(data))
        digest = _digest_from(file, START)
        file.seek(len(MAGIC))
        file.write(digest.encode())
    return written


def import_entries(
    store: Store, bundle: Path, take: Callable[[Path], object] | None = None
) -> tuple[Entry, ...]:
    """Put the entries of a bundle into the store, all or none; those that are new and stayed.

    `take` is called with the directory of the files that lay beside them, for as long as the
    call lasts; it may raise, and nothing is imported then. A store that is full drops
    some, which it notes.
    Raises ConfigError where it is no bundle or no regular file, DamageError where it is a damaged
    one, and OSError where the store cannot be written.
    """
    _require_file(bundle)
    with bundle.open("rb") as file:
        _check(file, bundle)
        file.seek(START)
        with _room(store) as aside:
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    _unpack(tar, aside)
                found = [_sound(directory) for directory in _entries(aside)]
            except (tarfile.TarError, ValueError, OverflowError) as e:
                raise DamageError(f"{bundle} cannot be unpacked: {e}", hint=_AGAIN) from e
            if take is not None:
                (aside / BESIDE).mkdir(exist_ok=True)
                take(aside / BESIDE)
            return _taken_in(store, found)


@contextmanager
def _room(store: Store) -> Iterator[Path]:
    """A directory on the disk of the store; if we die, the next import or collection removes it."""
    with store.locked(IMPORT):
        for left in store.scratch.glob(f"{IMPORT}.*"):
            delete(left)
        with held_directory(store, IMPORT) as directory:
            yield directory


@contextmanager
def _replaced(out: Path) -> Iterator[BinaryIO]:
    """`replaced`, where something that is no regular file must not be."""
    _refuse_other(out)
    with replaced(out) as file:
        yield file
        _refuse_other(out)


def _refuse_other(out: Path) -> None:
    """ConfigError if something lies at `out` that is no regular file, nor a link to one."""
    place = Path(os.path.realpath(out))
    if not is_there(place) or is_file(place):
        return
    kind = next((told for looks, told in KINDS.items() if looks(place)), "something else")
    raise ConfigError(f"{out} is {kind}, a bundle is a file", hint="name a file, new or old")


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
    with suppress(OSError):
        return is_file(files / path) and describe(files / path, path) == entry.file(path)
    return False


def _put(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with path.open("rb") as file:
        _add(tar, name, file, path.stat().st_size)


def _add(tar: tarfile.TarFile, name: str, file: BinaryIO, nbytes: int) -> None:
    """A member that says nothing of owner, mode or time."""
    info = tarfile.TarInfo(name)
    info.size = nbytes
    tar.addfile(info, file)


def _unpack(tar: tarfile.TarFile, directory: Path) -> None:
    """Plain files of entries: whoever made the bundle may have made its digest too."""
    for member in tar:
        name = member.name
        plain = member.isreg() and not member.issparse()
        read = tar.extractfile(member) if plain and NAME.fullmatch(name) else None
        if read is None or str(PurePosixPath(name)) != name or ".." in PurePosixPath(name).parts:
            raise ValueError(f"it holds {_cut(name)}, which is no file of an entry")
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write = path.open("xb")
        except OSError as e:
            if e.errno not in ITS_FAULTS:
                raise
            raise ValueError(f"{_cut(name)}: {(e.strerror or str(e)).lower()}") from e
        with read, write:
            shutil.copyfileobj(read, write, BLOCK)


def _cut(name: str) -> str:
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")


def _require_file(bundle: Path) -> None:
    """ConfigError for what is no file, or one whose end may never come."""
    if is_file(bundle):
        return
    other = bundle.exists() and not bundle.is_dir()
    told = f"{bundle} is no regular file" if other else f"no bundle {bundle}"
    raise ConfigError(told, hint=_EXPORTED)


def _check(file: BinaryIO, bundle: Path) -> None:
    if file.read(len(MAGIC)) != MAGIC:
        raise ConfigError(f"{bundle} is no cache bundle", hint=_EXPORTED)
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


def _entries(aside: Path) -> Iterator[Path]:
    for level in LEVELS:
        yield from sorted((aside / level).glob("*"))


def _sound(directory: Path) -> tuple[Entry, Path]:
    """An unpacked entry, whole and with its digests, and its files; ValueError if it is not."""
    name = f"{directory.parent.name}/{directory.name}"
    try:
        entry = read_entry(directory)
    except (FileNotFoundError, DamageError) as e:
        raise ValueError(f"{name} has no sound {ENTRY}") from e
    if entry.key.level != directory.parent.name:
        raise ValueError(f"{name} is of another level")
    wrong = [f.path for f in entry.files if not _is_sound(directory / FILES, entry, f.path)]
    if wrong:
        raise ValueError(f"{name}: {_cut(wrong[0])} is damaged or missing")
    return entry, directory / FILES


def _taken_in(store: Store, found: Sequence[tuple[Entry, Path]]) -> tuple[Entry, ...]:
    new = []
    for entry, files in found:
        with store.locked(entry.key.digest):
            if store.find(entry.key) is None:
                store.add(entry.key, files, entry.files)
                new.append(entry)
        shutil.rmtree(files.parent)
    stayed = tuple(entry for entry in new if store.has(entry.key))
    if len(stayed) < len(new):
        store.notes.append(f"{len(new) - len(stayed)} of {len(new)} new entries did not stay")
    return stayed


_EXPORTED: Final = "give a file that mlc-compile cache export wrote"
_AGAIN: Final = "copy or export it again"
