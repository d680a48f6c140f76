"""One file, or whatever lies in its place: synced, replaced, deleted."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

# What says that a file system syncs no directories, or does not let us open this one.
NO_SYNC: Final = frozenset(
    {
        errno.EACCES,
        errno.EBADF,
        errno.EINVAL,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.EPERM,
    }
)


@contextmanager
def replaced(path: Path, aside: Path | None = None) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path`, or of what it links to, if the block succeeds.

    It has a name of its own until then, since two may write at once; `aside`: this one, where
    nobody else does. An OSError speaks of `path`.
    """
    place = Path(os.path.realpath(path))
    aside = aside or place.with_name(f".{uuid4().hex}.partial")
    try:
        with aside.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place)
        sync(place.parent)
    except OSError as e:
        if e.filename in {None, str(aside)}:
            e.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk.

    Some file systems sync no directories: names there are not waited for.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as e:
        if e.errno not in NO_SYNC or not path.is_dir():
            raise


def delete(path: Path) -> None:
    """Remove whatever `path` is, as far as that goes."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
