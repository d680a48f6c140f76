"""`mlc-compile device-server` as a process, ended with all that it started."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
SECONDS = 120  # for what takes a moment on an idle machine


@dataclass
class Device:
    """A server that has said where it listens; `said` is the file of its stderr."""

    process: subprocess.Popen
    said: Path
    address: str = ""
    tracker: str = ""
    family: list[psutil.Process] = field(default_factory=list)

    def processes(self):
        """Its own process and all under it, also those of earlier calls."""
        with suppress(psutil.NoSuchProcess):
            known = psutil.Process(self.process.pid)
            self.family += [known, *known.children(recursive=True)]
        return list(dict.fromkeys(self.family))

    def end(self, number):
        """Send the signal; the exit code, and the processes that stay."""
        family = self.processes()
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        _, left = psutil.wait_procs(family, SECONDS)
        return code, left

    def wait_for(self, text):
        """Until it has said that on stderr."""
        wait_for(lambda: text in self.said.read_text())


@contextmanager
def device(tmp_path, *options, key="box", port=0):
    """`with device(tmp_path, "--tracker-port", 0) as one`: serving; killed in the end."""
    said = tmp_path / f"device-{time.monotonic_ns()}.err"
    arguments = ["device-server", "--json", "--key", key, "--port", port, "--threads", 1, *options]
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlc_compile", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | {"MLC_COMPILE_CACHE": str(tmp_path / "device")},
            cwd=ROOT,
            text=True,
        )
    made = Device(process, said)
    try:
        facts = json.loads("".join(iter(lambda: ended(process), "}\n")) + "}")
        made.address, made.tracker = facts["address"], facts["tracker"]
        yield made
    finally:
        family = made.processes()
        process.kill()
        process.wait()
        process.stdout.close()
        for one in psutil.wait_procs(family, SECONDS)[1]:
            one.send_signal(signal.SIGKILL)


def ended(process):
    """The next line of a result; the process must not end before it."""
    line = process.stdout.readline()
    assert line, "the server ended"
    return line


def wait_for(true):
    """Until it is."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
