"""Run a compiler, linker or archiver, and tell its failure in a sentence."""

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.errors import TargetError, last_line

NO_SPACE: Final = "No space left on device"  # strerror(ENOSPC) in English
FULL: Final = (NO_SPACE, "NoSpaceLeft")  # how tools tell a full disk; the second is zig's
SCARCE: Final = 16 << 20  # bytes: with less a library may not fit
LIMIT: Final = 20.0  # seconds for a question that a tool answers at once

# Variables by which compilers and linkers take other files than their own, or write other
# bytes: no cache key knows them.
OVERRIDES: Final = (
    "CCC_OVERRIDE_OPTIONS",
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "LDEMULATION",
    "LD_RUN_PATH",
    "LIBRARY_PATH",
    "MACOSX_DEPLOYMENT_TARGET",
    "NIX_CFLAGS_COMPILE",
    "NIX_CFLAGS_LINK",
    "NIX_LDFLAGS",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said to a question; `code` None: it did not start, or not end in time."""

    code: int | None
    out: str
    said: str  # on stderr, or why there is no answer

    @property
    def fault(self) -> str:
        """Why this is no answer: the tool's last line, or ours; "" if it is one."""
        if self.code == 0:
            return ""
        return last_line(self.said, last_line(self.out, f"exit code {self.code}"))


def environment(without: Iterable[str] = ()) -> dict[str, str]:
    """Ours for a tool: English, since we read what it says, and without OVERRIDES."""
    dropped = {*OVERRIDES, *without}
    return {**{k: v for k, v in os.environ.items() if k not in dropped}, "LC_ALL": "C"}


def ask(command: Sequence[str], env: Mapping[str, str] | None = None) -> Answer:
    """Ask a tool something that it answers at once; raises nothing, takes LIMIT at most."""
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environment() if env is None else env,
            start_new_session=True,
        ) as process:
            try:
                out, said = process.communicate(timeout=LIMIT)
            except BaseException:
                _kill(process)
                raise
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"it does not answer within {LIMIT:g} seconds")
    except OSError as e:
        return Answer(None, "", f"it does not start: {e.strerror}")
    return Answer(process.returncode, out, said)


def first_line(command: Sequence[str]) -> str:
    """The first line of what a tool answers; "" if it cannot be run."""
    return ask(command).out.partition("\n")[0].strip()


def run_tool(command: Sequence[str], room: Path, out: Path, failure: str, hint: str) -> None:
    """Run `command` in the directory `room`, where it is to write a file of the name of `out`.

    Other files that it leaves there nobody wants. Raises TargetError, `failure` with the
    program's last line, or OSError for a full disk, as where we write `out` ourselves.
    """
    try:
        done = subprocess.run(
            command,
            cwd=room,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            env=environment(),
        )
    except OSError as e:
        words = f"{command[0]} does not start: {e.strerror}"
        raise TargetError(f"{failure}: {words}", hint=hint) from None
    if done.returncode == 0 and (room / out.name).is_file():
        return
    if tells_full(done.stderr) or (_crashed(done) and shutil.disk_usage(room).free < SCARCE):
        raise OSError(errno.ENOSPC, NO_SPACE, str(out))
    silent = f"exit code {done.returncode}" if done.returncode else "it ended well, without a file"
    raise TargetError(f"{failure}: {last_line(done.stderr, silent)}", hint=hint)


def tells_full(said: str) -> bool:
    """Whether a tool's words are about a full disk."""
    return any(words in said for words in FULL)


def _crashed(done: "subprocess.CompletedProcess[str]") -> bool:
    """Whether a tool, or one that it ran, was ended by a signal.

    A linker that writes through mapped memory learns of a full disk in no other way.
    """
    return done.returncode < 0 or "terminated with signal" in done.stderr


def _kill(process: "subprocess.Popen[str]") -> None:
    """End a tool and whatever it started: its children would keep the pipes open."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
