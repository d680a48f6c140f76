"""A process of our own that answers questions one by one, each by its deadline.

JSON lines in and out. A process that does not answer in time, or dies, is killed and replaced
at the next question: whatever a candidate does to it, tuning goes on. If we are killed it ends
at once, in the middle of an answer too: its stdin has ended then.
"""

import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final, TypeVar

import msgspec

from mlc_compile.errors import MlcError, last_line
from mlc_compile.runtime.child import command, environment

T = TypeVar("T")

START_SECONDS: Final = 180.0  # importing TVM takes many on a busy machine
CHUNK: Final = 1 << 16


class Refusal(msgspec.Struct, frozen=True):
    """The process is well, but the question had no answer: why."""

    refused: str


class Trouble(Exception):
    """No answer; `kind` is `refused`, `hang` or `crash`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class Worker:
    """The process of one of our modules, which ends with `serve(...)`; started when asked.

    `threads` limits what its libraries start; None: as the machine has it. `room` is where its
    temporary files go; None: where all of this machine go.
    """

    module: str
    threads: int | None = None
    room: Path | None = None
    starts: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _said: IO[bytes] | None = None
    _held: bytes = field(default=b"")

    def ask(self, question: object, answer: type[T], seconds: float) -> T:
        """The answer to one question; Trouble if there is none within `seconds`."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        except OSError as e:
            raise self._crashed() from e
        line = self._line(seconds)
        with suppress(msgspec.DecodeError):
            raise Trouble("refused", msgspec.json.decode(line, type=Refusal).refused)
        return msgspec.json.decode(line, type=answer)

    def warm(self) -> None:
        """Start the process now, so that the first question does not wait for it."""
        if self._process is None:
            self._start()

    def close(self) -> None:
        """Kill the process, if there is one."""
        process, self._process, self._held = self._process, None, b""
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if self._said is not None:
            self._said.close()
            self._said = None

    def _start(self) -> "subprocess.Popen[bytes]":
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        room = {} if self.room is None else {"TMPDIR": str(self.room)}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self.starts += 1
        # A session of its own: Ctrl-C is for us, who then end it.
        self._process = subprocess.Popen(
            command(self.module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment(**threads, **room),
            start_new_session=True,
        )
        if self._line(START_SECONDS) != READY:
            raise self._crashed()
        return self._process

    def _line(self, seconds: float) -> bytes:
        """The next line of its stdout."""
        process, end = self._process, time.monotonic() + seconds
        assert process is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._held:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise Trouble("hang", f"no answer in {seconds:.0f} s")
                piece = os.read(process.stdout.fileno(), CHUNK)
                if not piece:
                    raise self._crashed()
                self._held += piece
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _crashed(self) -> Trouble:
        """What is known of the end of the process, which is then cleared away."""
        process, said = self._process, b""
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read()
        code = None if process is None else process.returncode
        self.close()
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Trouble("crash", f"{why}: {last_line(said.decode(errors='replace'), 'no word')}")


READY: Final = b'"ready"'

# What a question may meet without the process being broken. Anything else ends it.
FORESEEN: Final = (
    MlcError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def serve(question: type[T], answer: Callable[[T], object]) -> None:
    """Answer each line of stdin until there is no more; nothing else reaches our stdout."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LLVM and TVM may print

    def say(value: object) -> None:
        out.write(msgspec.json.encode(value) + b"\n")
        out.flush()

    say("ready")
    for line in _asked():
        try:
            said = answer(msgspec.json.decode(line, type=question))
        except FORESEEN as e:
            said = Refusal(f"{type(e).__name__}: {last_line(str(e), 'no reason given')}")
        say(said)


def _asked() -> Iterator[bytes]:
    """Each line of stdin. When that ends, whoever asks is gone, and this process ends too."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        yield lines.get()


def _read(lines: "SimpleQueue[bytes]") -> None:
    with open(0, "rb", closefd=False) as stdin:  # not sys.stdin: Python locks it when it exits
        for line in stdin:
            lines.put(line)
    if os.getpgrp() == os.getpid():  # with a linker, for one, that works for us
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
