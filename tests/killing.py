"""Commands that are killed in the middle of their work, with a view of all that they started."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

import psutil

ROOT = Path(__file__).parents[1]
MARK = "MLC_COMPILE_TEST_MARK"  # in the environment of a victim, which what it starts inherits
SECONDS = 60.0  # for what takes a moment on an idle machine
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

# How many random moments to kill at, beside the fixed ones: a test of minutes to hours.
RANDOM_KILLS = int(os.environ.get("MLC_COMPILE_RANDOM_KILLS", "0"))


class Victim:
    """`with Victim(command) as one`: a running command; nothing of it is left afterwards."""

    def __init__(
        self,
        command: Sequence[object],
        *,
        stdin: int = subprocess.DEVNULL,
        env: dict[str, str] | None = None,
    ) -> None:
        self.mark = uuid4().hex
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(env or {}), MARK: self.mark},
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.family():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def line(self) -> bytes:
        """The next line of its stdout, whole; empty where it ended."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        return text if text.endswith(b"\n") else b""

    def lines(self) -> list[bytes]:
        """The whole lines that are left once it ended."""
        return list(iter(self.line, b""))

    def kill(self) -> None:
        """The process itself, which cannot clean up."""
        self.process.kill()
        self.process.wait()

    def family(self) -> list[psutil.Process]:
        """Itself and all that it started, whoever their parent is by now."""
        return [one for one in psutil.process_iter() if self._is_ours(one)]

    def left(self, seconds: float = SECONDS) -> list[str]:
        """What still runs of it after so long at most."""
        end = time.monotonic() + seconds
        while (family := self.family()) and time.monotonic() < end:
            time.sleep(0.05)
        return [_told(one) for one in family]

    def _is_ours(self, one: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            return one.status() not in ENDED and one.environ().get(MARK) == self.mark
        return False


def wait_for(what: Callable[[], object], seconds: float = SECONDS) -> None:
    """Until it holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def _told(one: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(one.cmdline())
    return "a process that ended meanwhile"
