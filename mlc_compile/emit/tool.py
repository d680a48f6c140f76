"""Run a compiler, linker or archiver, and tell its failure in a sentence."""

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlc_compile.errors import TargetError, last_line

NO_SPACE: Final = "No space left on device"  # strerror(ENOSPC) in English


def run_tool(command: Sequence[str], room: Path, out: Path, failure: str, hint: str) -> None:
    """Run `command` in the directory `room`, where it may leave files that nobody wants.

    Raises TargetError, `failure` with the program's last line, or OSError for a full disk, as
    where we write `out` ourselves.
    """
    done = subprocess.run(
        command,
        cwd=room,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},  # we read what it says
    )
    if done.returncode == 0:
        return
    if NO_SPACE in done.stderr:
        raise OSError(errno.ENOSPC, NO_SPACE, str(out))
    words = last_line(done.stderr, f"exit code {done.returncode}")
    raise TargetError(f"{failure}: {words}", hint=hint)
