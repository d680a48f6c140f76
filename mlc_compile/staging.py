"""How a directory gets on disk whole: written beside its place, renamed at the end.

A reader sees the old directory or the new one, never half of either. Between the two renames
of a replacement there is none, for as long as they take.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from mlc_compile.artifact import is_ours
from mlc_compile.errors import ConfigError


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Give a scratch directory that becomes `directory` if the block succeeds.

    A failure or an interrupt removes the scratch and the parents made for it, and leaves what
    was there before. What a run that was killed left beside `directory` is cleared first.
    Raises ConfigError as `refuse_foreign`; an OSError about the scratch names `directory`.
    """
    directory = _followed(directory)
    refuse_foreign(directory)
    scratch = _beside(directory, "partial")
    with _parents_of(directory), _blamed_on(directory, scratch):
        _clear_stale(directory)
        try:
            scratch.mkdir()  # inside: an interrupt may come as soon as it is there
            yield scratch
            _replace(directory, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


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


def _beside(directory: Path, kind: Literal["partial", "retired"]) -> Path:
    return directory.parent / f".{directory.name}.{os.getpid()}.{kind}"


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
def _blamed_on(directory: Path, scratch: Path) -> Iterator[None]:
    """Errors about `scratch` and what is in it speak of `directory`, which people know."""
    try:
        yield
    except OSError as e:
        e.filename = _final_name(e.filename, directory, scratch)
        if e.filename2 is not None:  # of a copy or rename: where to
            e.filename2 = _final_name(e.filename2, directory, scratch)
        raise


def _final_name(name: object, directory: Path, scratch: Path) -> object:
    if isinstance(name, str | os.PathLike) and Path(name).is_relative_to(scratch):
        return str(directory / Path(name).relative_to(scratch))
    return name


def _clear_stale(directory: Path) -> None:
    """Remove what killed processes left, or put it back if it is all that there is."""
    left = re.compile(re.escape(f".{directory.name}.") + r"(\d+)\.(partial|retired)")
    for path in directory.parent.iterdir():
        match = left.fullmatch(path.name)
        if match is None or _is_other_process(int(match[1])):
            continue
        if match[2] == "retired" and not directory.exists():
            path.rename(directory)  # it died between the two renames
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_other_process(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _replace(directory: Path, scratch: Path) -> None:
    """Rename `scratch` to `directory`; whatever interrupts this, one of the two is there."""
    if not directory.exists():
        scratch.rename(directory)
        return
    retired = _beside(directory, "retired")
    try:
        directory.rename(retired)
        scratch.rename(directory)
    finally:
        if directory.exists():
            shutil.rmtree(retired, ignore_errors=True)
        else:
            retired.rename(directory)
