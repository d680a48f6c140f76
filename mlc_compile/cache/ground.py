"""What lies where the store's directories and entries belong, whoever put it there."""

import os
import stat
from pathlib import Path
from typing import Final

from mlc_compile.errors import EnvironmentError_
from mlc_compile.staging import delete


def is_there(path: Path) -> bool:
    """Whether anything has this name, a symbolic link that leads nowhere too."""
    return os.path.lexists(path)


def is_file(path: Path) -> bool:
    """Whether `path` is a regular file: reading anything else may fail, or wait for ever."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def make_directory(root: Path, directory: Path) -> None:
    """Make `directory` under `root`; what is no directory and stands in its way there goes."""
    for place in (directory, *directory.parents):
        if place.is_relative_to(root) and is_there(place) and not place.is_dir():
            delete(place)
    directory.mkdir(parents=True, exist_ok=True)


def require_directories(*places: Path) -> None:
    """EnvironmentError_ where one of `places` is there and is no directory."""
    for place in places:
        try:
            is_directory = stat.S_ISDIR(place.stat().st_mode)
        except FileNotFoundError:
            is_directory = not is_there(place)
        except OSError as e:
            reason = (e.strerror or str(e)).lower()
            raise EnvironmentError_(f"{place}: {reason}", hint=_ELSEWHERE) from e
        if not is_directory:
            raise EnvironmentError_(f"{place} is not a directory", hint=_ELSEWHERE)


_ELSEWHERE: Final = "name a directory with --cache-dir"
