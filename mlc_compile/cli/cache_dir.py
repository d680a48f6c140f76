"""Where the build cache and the tuning records go when neither option nor variable says."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from mlc_compile.errors import EnvironmentError_

ELSEWHERE: Final = "name another with --cache-dir"


def default_cache_dir() -> Path:
    """XDG's place for caches; EnvironmentError_ if there is no home and no place is safe."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and os.environ.get("HOME") == "":
        return _homeless()
    try:
        return (Path(base) if base else Path.home() / ".cache") / "mlc_compile"
    except RuntimeError:  # no HOME, and a user without an entry: usual in containers
        return _homeless()


def _homeless() -> Path:
    """A directory among the temporary ones that nobody else can write to; it is there then.

    A cache holds libraries, which are loaded: somebody else's would run as us.
    """
    path = Path(tempfile.gettempdir()) / f"mlc_compile-{os.getuid()}"
    told = f"{path}, where the cache goes without a home directory,"
    try:
        path.mkdir(mode=0o700)
    except OSError as e:
        if not os.path.lexists(path):
            raise EnvironmentError_(f"{told} cannot be made: {e.strerror}", hint=ELSEWHERE) from e
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise EnvironmentError_(
            f"{told} is not this user's alone",
            hint=f"make it a directory of yours with mode 0700, or {ELSEWHERE}",
        )
    return path
