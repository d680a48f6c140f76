"""Locks between processes. The kernel lets go of one when its holder dies, however it dies."""

import fcntl
import os
from pathlib import Path

from mlc_compile.staging.file import delete


def acquire(path: Path, *, wait: bool = True) -> int | None:
    """Lock `path`, made if it is absent; the handle to `release`, None if held and not `wait`.

    OSError where the file cannot be made or the file system has no locks.
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
