"""Locks between processes, held for the time of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlc_compile.staging.lock import acquire, release


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock, waiting for it. OSError as of `acquire`."""
    handle = acquire(path)
    assert handle is not None, "it waits"
    try:
        yield
    finally:
        release(handle)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock if nobody else does; whether that is so."""
    handle = acquire(path, wait=False)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            release(handle)
