"""Files of an artifact on their way: links between artifacts of one build, and modes."""

import shutil
from pathlib import Path

from mlc_compile.artifact import File, describe
from mlc_compile.driver.reuse import Reuse


def link_file(file: File, source: Path, target: Path, reuse: Reuse) -> bool:
    """Link `file`, which this build wrote into `source`, into `target`; a copy if need be.

    False, and nothing in `target`, if it is not what we wrote. Nobody holds `source` any more: a
    parallel build may put another file there between our looking and our linking, so what was
    linked must be what we looked at.
    """
    there, linked = source / file.path, target / file.path
    try:
        before = there.stat()
        if not reuse.is_intact(source, (file,)):
            return False
        if _linked(there, linked):
            after = linked.stat()
            same = (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
            if same:  # a link more is another change time
                reuse.trust(source, (file,), seen=target)
        else:
            shutil.copyfile(there, linked)
            same = describe(linked, file.path) == file
    except FileNotFoundError:
        return False
    if not same:
        linked.unlink()
    return same


def _linked(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        return False
    return True


def make_plain(directory: Path, like: Path) -> None:
    """Give all files of `directory` the mode of `like`.

    Linkers make libraries executable, which no loader asks for and no copy keeps.
    """
    mode = like.stat().st_mode
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(mode)
