"""Locks between processes. The kernel lets go of one when its holder dies, however it dies."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mlc_compile.staging.file import delete

# What says that a file system has no locks.
NO_LOCKS: Final = frozenset(
    {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock for the time of a block, waiting for it. OSError as of `acquire`."""
    handle = acquire(path)
    assert handle is not None, "it waits"
    try:
        yield
    finally:
        release(handle)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """The same if nobody else holds it; whether that is so."""
    handle = acquire(path, wait=False)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            release(handle)


def acquire(path: Path, *, wait: bool = True) -> int | None:
    """Lock `path`, made if it is absent; the handle to `release`, None if held and not `wait`.

    OSError where the file cannot be made or the file system has no locks (NO_LOCKS).
    """
    while True:
        if path.is_dir():  # nobody of us made it
            delete(path)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        if _is_at(handle, path):
            return handle
        os.close(handle)  # it was unlinked while we waited: others lock a new file


def release(handle: int) -> None:
    """Let go of a lock."""
    os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
