"""A directory that is written in a room beside its place, and renamed at the end.

    .<name>.<random>.partial/lock   held for as long as somebody writes
                             new    what is written
                             old    what it replaces, between the two renames

Between the two renames of a replacement there is no directory, for as long as they take.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from mlc_compile.artifact import is_ours
from mlc_compile.errors import ConfigError
from mlc_compile.staging.file import sync
from mlc_compile.staging.lock import NO_LOCKS, hold, try_lock

LOCK: Final = "lock"
NEW: Final = "new"
OLD: Final = "old"


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Give a scratch directory that becomes `directory` if the block succeeds.

    A failure or an interrupt removes the scratch and the parents made for it, and leaves what
    was there before. What a run that was killed left beside `directory` is cleared first.
    Raises ConfigError as `refuse_foreign`; an OSError about the scratch names `directory`.
    """
    directory = _followed(directory)
    refuse_foreign(directory)
    room = directory.parent / f".{directory.name}.{uuid4().hex}.partial"
    with _parents_of(directory), _blamed_on(directory, room):
        _clear_stale(directory)
        with _taken(directory, room):
            scratch = room / NEW
            scratch.mkdir()
            yield scratch
            _sync_all(scratch)
            _replace(directory, room)


def _followed(directory: Path) -> Path:
    """Where a symbolic link leads: the link stays, and what it points to is replaced."""
    if not directory.is_symlink():
        return directory
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as e:  # a loop
        raise ConfigError(
            f"{directory} is a symbolic link that leads nowhere", hint="remove the link"
        ) from e


def refuse_foreign(directory: Path) -> None:
    """ConfigError if `directory` is something that we did not write: not empty, no manifest."""
    if not directory.exists():
        return
    if not (directory.is_dir() and (is_ours(directory) or not any(directory.iterdir()))):
        raise ConfigError(
            f"{directory} exists and was not written by mlc-compile",
            hint="choose another directory with -o, or remove it first",
        )


@contextmanager
def _parents_of(directory: Path) -> Iterator[None]:
    """Make the parents of `directory`; after a failure remove those made, if still empty."""
    missing = [p for p in directory.parents if not p.exists()]  # the innermost first
    try:
        for parent in reversed(missing):  # pathlib's own `parents=True` recurses
            parent.mkdir(exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            for parent in missing:
                parent.rmdir()
        raise


@contextmanager
def _blamed_on(directory: Path, room: Path) -> Iterator[None]:
    """Errors about `room` and what is in it speak of `directory`, which people know."""
    try:
        yield
    except OSError as e:
        e.filename = _final_name(e.filename, directory, room)
        if e.filename2 is not None:  # of a copy or rename: where to
            e.filename2 = _final_name(e.filename2, directory, room)
        raise


def _final_name(name: object, directory: Path, room: Path) -> object:
    if not isinstance(name, str | os.PathLike):
        return name
    for place in (room / NEW, room):
        if Path(name).is_relative_to(place):
            return str(directory / Path(name).relative_to(place))
    return name


@contextmanager
def _taken(directory: Path, room: Path) -> Iterator[None]:
    """Make the room and hold its lock; in the end it is gone."""
    with ExitStack() as lock:
        try:  # from here on: an interrupt may come as soon as the room is there
            _make(room, lock)
            yield
        finally:
            _clear(directory, room)


def _make(room: Path, lock: ExitStack) -> None:
    """Make the room and lock it, where the file system has locks."""
    while True:
        room.mkdir(exist_ok=True)
        try:
            lock.enter_context(hold(room / LOCK))
        except FileNotFoundError:  # somebody took it for a dead one's before we had the lock
            continue
        except OSError as e:
            if e.errno not in NO_LOCKS:
                raise
        return


def _clear_stale(directory: Path) -> None:
    """Clear the rooms of killed processes, which nobody locks any more."""
    rooms = re.compile(re.escape(f".{directory.name}.") + r"[0-9a-f]{32}\.partial")
    for room in directory.parent.iterdir():
        if rooms.fullmatch(room.name) is None:
            continue
        # Without locks there is no telling: it stays, and so does what cannot be removed.
        with suppress(OSError), try_lock(room / LOCK) as free:
            if free:
                _clear(directory, room)


def _clear(directory: Path, room: Path) -> None:
    """Remove a room; what it replaced goes back if it is all that there is."""
    old = room / OLD
    if old.exists() and not directory.exists():
        old.rename(directory)  # between the two renames
    shutil.rmtree(room, ignore_errors=True)


def _sync_all(directory: Path) -> None:
    """Wait for the disk: whoever finds a file of full size by its times takes it for whole."""
    for path in (*directory.rglob("*"), directory):
        sync(path)


def _replace(directory: Path, room: Path) -> None:
    """Rename what is new to `directory`; whatever interrupts this, one of the two is there."""
    if directory.exists():
        directory.rename(room / OLD)
    (room / NEW).rename(directory)
    sync(directory.parent)
