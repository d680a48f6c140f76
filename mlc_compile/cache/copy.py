"""Files in and out of the cache: copies, never links.

A hard link would save the space and the time of a copy, but whoever writes into `dist/` in
place would then write into the cache, and root is not stopped by a read-only bit. A clone
(reflink) costs neither where the file system has it. Elsewhere the bytes have to be read for
their digest anyway, and a copy made on the way costs less than that again.
"""

import fcntl
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from mlc_compile.artifact import File
from mlc_compile.cache.ground import is_file

FICLONE: Final = 0x40049409  # Linux's ioctl that clones a file: _IOW(0x94, 9, int)
BLOCK: Final = 1 << 20


class Unreadable(Exception):
    """The source of a copy is missing or its disk fails; an OSError is the target's."""


def copy_in(source: Path, target: Path) -> None:
    """Copy a file, read-only; its digest is not looked at."""
    _copy(source, target, id)
    target.chmod(0o444)


def copy_out(source: Path, target: Path, expected: File) -> bool:
    """Copy a file; False if what was copied does not have the size and digest of `expected`.

    Raises Unreadable, and OSError for the target.
    """
    digest = hashlib.sha256()
    if _copy(source, target, digest.update):
        with target.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    return digest.hexdigest() == expected.sha256 and target.stat().st_size == expected.nbytes


def _copy(source: Path, target: Path, see: Callable[[bytes], object]) -> bool:
    """Clone, else copy and show each block to `see`; whether it is a clone, which `see` missed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _opened(source) as read, target.open("xb") as write:
        if _cloned(read.fileno(), write.fileno()):
            return True
        while block := _next(read):
            see(block)
            write.write(block)
    return False


def _opened(source: Path) -> BinaryIO:
    if not is_file(source):
        raise Unreadable
    try:
        return source.open("rb")
    except OSError as e:
        raise Unreadable from e


def _next(file: BinaryIO) -> bytes:
    try:
        return file.read(BLOCK)
    except OSError as e:
        raise Unreadable from e


def _cloned(source: int, target: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:  # another file system, or one without clones
        return False
    return True
