"""nvcc of a CUDA toolkit; it needs a C++ compiler beside it, and neither GPU nor driver."""

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.emit.cuda.compiler import PIP_HINT, SOURCE, Fatbin, first_error, unknown_arch
from mlc_compile.emit.cuda.resources import arch_number, read_resources
from mlc_compile.emit.tool import NO_SPACE
from mlc_compile.errors import TargetError

FLAGS: Final = ("-fatbin", "-std=c++17", "-Xptxas", "-v", "--threads", "0")  # 0: all cores
OUTPUT: Final = "kernels.fatbin"
ROOM: Final = 32 << 20  # bytes of temporary files: a few for each architecture, source included
TOOLKITS: Final = ("CUDA_HOME", "CUDA_PATH")  # environment variables that name one
USUAL: Final = Path("/usr/local/cuda")
HOST: Final = "gcc"  # nvcc reads source through it
OPTIONS: Final = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # variables that add to FLAGS


def find_nvcc() -> "Nvcc | None":
    """nvcc on PATH, else in the toolkit that the environment names, else in the usual place."""
    homes = [*(os.environ[v] for v in TOOLKITS if os.environ.get(v)), str(USUAL)]
    places = (None, *(str(Path(home) / "bin") for home in homes))
    command = next((c for place in places if (c := shutil.which("nvcc", path=place))), None)
    if command is None:
        return None
    command = os.path.abspath(command)  # it will run in another directory
    release = re.search(r"release (\d+)\.(\d+), V([\d.]+)", _ask(command, "--version"))
    known = tuple(_ask(command, "--list-gpu-code").split())
    if release is None:
        return Nvcc("nvcc", command, (0, 0), known)
    return Nvcc(f"nvcc {release[3]}", command, (int(release[1]), int(release[2])), known)


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A toolkit's compiler; `known` are the architectures that it lists."""

    name: str
    command: str
    release: tuple[int, int]
    known: tuple[str, ...]

    def missing(self, archs: Sequence[str]) -> TargetError | None:
        """Its answer, its release, its host compiler."""
        if self.release == (0, 0):
            return TargetError(
                f"{self.command} does not tell its version", hint="reinstall the CUDA toolkit"
            )
        if not os.environ.get("NVCC_CCBIN") and shutil.which(HOST) is None:
            return TargetError(
                f"{self.name} needs {HOST}, which is not on PATH",
                hint=f"install {HOST}, or {PIP_HINT.partition(';')[0]}",
            )
        return unknown_arch(self.name, self.release, self.known, archs)

    def compile(self, source: str, archs: Sequence[str]) -> Fatbin:
        """One run for all architectures, its reports gathered by architecture."""
        with tempfile.TemporaryDirectory(prefix="mlc-compile-nvcc-") as name:
            place = Path(name)
            (place / SOURCE).write_text(source, encoding="utf-8")
            command = (self.command, *FLAGS, *gencode(archs), "-o", OUTPUT, SOURCE)
            code, words = _run(command, place)
            if code != 0:
                raise _failure(self.name, words, code, place)
            return Fatbin((place / OUTPUT).read_bytes(), read_resources(source, words))


def _run(command: Sequence[str], place: Path) -> tuple[int, str]:
    """The exit code, and all that was said.

    Said into memory: in a pipe the reports of several architectures could mix, and on a disk
    that is full none would arrive.
    """
    with open(os.memfd_create("said"), "w+", encoding="utf-8", errors="replace") as said:
        code = subprocess.run(
            command,
            cwd=place,
            env=_environment(place),
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        said.seek(0)
        return code, said.read()


def gencode(archs: Sequence[str]) -> Iterator[str]:
    """nvcc's options for machine code of each architecture and PTX of the newest."""
    newest = max(archs, key=arch_number).removeprefix("sm_")
    numbers = [arch.removeprefix("sm_") for arch in archs]
    for number, code in (*((n, f"sm_{n}") for n in numbers), (newest, f"compute_{newest}")):
        yield from ("-gencode", f"arch=compute_{number},code={code}")


def _failure(name: str, said: str, code: int, place: Path) -> Exception:
    """On a full disk nvcc often dies in silence; only an error of the source is surely another."""
    scarce = shutil.disk_usage(place).free < ROOM and ": error:" not in said
    if scarce or NO_SPACE in said:
        return OSError(errno.ENOSPC, NO_SPACE, tempfile.gettempdir())
    return TargetError(
        f"{name} could not compile the kernels: {first_error(said, f'exit code {code}')}",
        hint=f"see that the toolkit is whole and supports this machine's {HOST}",
    )


def _environment(place: Path) -> dict[str, str]:
    """Ours, without what would change the code: nvcc takes options from the environment too."""
    own = {k: v for k, v in os.environ.items() if k not in OPTIONS}
    return {**own, "LC_ALL": "C", "TMPDIR": str(place)}


def _ask(command: str, question: str) -> str:
    """What nvcc answers; nothing if it cannot."""
    try:
        return subprocess.run(
            [command, question], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""
