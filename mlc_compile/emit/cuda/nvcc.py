"""nvcc of a CUDA toolkit; it needs a C++ compiler beside it, and neither GPU nor driver."""

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Final

from mlc_compile.emit.cuda.compiler import PIP_HINT, SOURCE, Fatbin, first_error, unknown_arch
from mlc_compile.emit.cuda.resources import arch_number, read_resources
from mlc_compile.emit.tool import NO_SPACE, Answer, ask, environment, tells_full
from mlc_compile.errors import EnvironmentError_, MlcError, TargetError, last_line

FLAGS: Final = ("-fatbin", "-std=c++17", "-Xptxas", "-v", "--threads", "0")  # 0: all cores
OUTPUT: Final = "kernels.fatbin"
ROOM: Final = 32 << 20  # bytes of temporary files: a few for each architecture, source included
TOOLKITS: Final = ("CUDA_HOME", "CUDA_PATH")  # environment variables that name one
USUAL: Final = Path("/usr/local/cuda")
HOST: Final = "gcc"  # nvcc reads source through it
HOST_VARIABLE: Final = "NVCC_CCBIN"  # names another, or the directory of one
OPTIONS: Final = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # variables that add to FLAGS
REINSTALL: Final = "reinstall the CUDA toolkit"

# What nvcc runs and reads beside headers, and the places of it that `--dryrun` tells.
PLACES: Final = ("_HERE_", "CICC_PATH", "NVVMIR_LIBRARY_DIR")
PARTS: Final = (
    "nvcc",
    "nvcc.profile",
    "cudafe++",
    "cicc",
    "libdevice.10.bc",
    "ptxas",
    "fatbinary",
)


def find_nvcc() -> "Nvcc | None":
    """nvcc on PATH, else in the toolkit that the environment names, else in the usual place."""
    homes = [*(os.environ[v] for v in TOOLKITS if os.environ.get(v)), str(USUAL)]
    places = (None, *(str(Path(home) / "bin") for home in homes))
    command = next((c for place in places if (c := shutil.which("nvcc", path=place))), None)
    if command is None:
        return None
    command = os.path.abspath(command)  # it will run in another directory
    stat = os.stat(command)
    return _questioned(command, (stat.st_mtime_ns, stat.st_size), os.environ.get("TMPDIR"))


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A toolkit's compiler; `known` are the architectures that it lists.

    `fault` tells why it cannot be used, where it did not answer what it was asked.
    """

    name: str
    command: str
    release: tuple[int, int]
    known: tuple[str, ...]
    fault: str = ""

    def missing(self, archs: Sequence[str]) -> MlcError | None:
        """Its answer, its release, its host compiler; and a place for its temporary files."""
        if self.fault:
            return _no_temporary_place() or TargetError(self.fault, hint=REINSTALL)
        if not os.environ.get(HOST_VARIABLE) and shutil.which(HOST) is None:
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
            made = place / OUTPUT
            if code != 0 or not made.is_file():
                raise _failure(self.name, words, code, place)
            return Fatbin(made.read_bytes(), read_resources(source, words))

    def programs(self) -> Mapping[str, Path]:
        """The command, which may be a script, what stands behind it, and its host compiler."""
        told = ask([self.command, "--dryrun", FLAGS[0], SOURCE])
        places = re.findall(rf"^#\$ (?:{'|'.join(PLACES)})=(.+)$", told.out + told.said, re.M)
        beside = Path(os.path.realpath(self.command)).parent
        usual = (beside, beside.parent / "nvvm" / "bin", beside.parent / "nvvm" / "libdevice")
        inside = {
            name: Path(place) / name
            for place in reversed(places or usual)
            for name in PARTS
            if (Path(place) / name).is_file()
        }
        named = os.environ.get(HOST_VARIABLE, HOST)
        host = shutil.which(HOST, path=named) or shutil.which(named)
        return {"command": Path(self.command), **inside, **({HOST: Path(host)} if host else {})}


@cache
def _questioned(command: str, _stamp: tuple[int, int], _tmpdir: str | None) -> Nvcc:
    """nvcc as it tells of itself; asked once, since doctor wants to know for every target."""
    version = ask([command, "--version"])
    release = re.search(r"release (\d+)\.(\d+), V([\d.]+)", version.out)
    if version.fault or release is None:
        return Nvcc("nvcc", command, (0, 0), (), _fault(command, "--version", version))
    name, number = f"nvcc {release[3]}", (int(release[1]), int(release[2]))
    listed = ask([command, "--list-gpu-code"])
    known = tuple(re.findall(r"\bsm_\w+", listed.out))
    if listed.fault or not known:
        return Nvcc(name, command, number, (), _fault(command, "--list-gpu-code", listed))
    return Nvcc(name, command, number, known)


def _fault(command: str, question: str, answer: Answer) -> str:
    said = answer.fault or f"it says {last_line(answer.out, 'nothing')!r}"
    return f"{command} {question} gives no answer: {said}"


def _no_temporary_place() -> MlcError | None:
    """What is wrong with TMPDIR, where nvcc writes even to list architectures."""
    place = os.environ.get("TMPDIR")
    if not place or (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):
        return None
    return EnvironmentError_(
        f"TMPDIR names {place}, where no file can be written",
        hint="let TMPDIR name a directory that is there and can be written, or unset it",
    )


def _run(command: Sequence[str], place: Path) -> tuple[int, str]:
    """The exit code, and all that was said.

    Said into memory: in a pipe the reports of several architectures could mix, and on a disk
    that is full none would arrive.
    """
    with _memory() as said:
        try:
            code = subprocess.run(
                command,
                cwd=place,
                env={**environment(without=OPTIONS), "TMPDIR": str(place)},
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        except OSError as e:
            return -1, f"{command[0]} does not start: {e.strerror}"
        said.seek(0)
        return code, said.read().decode("utf-8", errors="replace")


def _memory() -> IO[bytes]:
    """A file in memory; where the system has no such thing, one on disk."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("said"), "w+b")
    return tempfile.TemporaryFile()


def gencode(archs: Sequence[str]) -> Iterator[str]:
    """nvcc's options for machine code of each architecture and PTX of the newest."""
    newest = max(archs, key=arch_number).removeprefix("sm_")
    numbers = [arch.removeprefix("sm_") for arch in archs]
    for number, code in (*((n, f"sm_{n}") for n in numbers), (newest, f"compute_{newest}")):
        yield from ("-gencode", f"arch=compute_{number},code={code}")


def _failure(name: str, said: str, code: int, place: Path) -> Exception:
    """On a full disk nvcc often dies in silence; only an error of the source is surely another."""
    scarce = shutil.disk_usage(place).free < ROOM and ": error:" not in said
    if scarce or tells_full(said):
        return OSError(errno.ENOSPC, NO_SPACE, tempfile.gettempdir())
    silent = f"exit code {code}" if code else "it ended well, without a file"
    words = first_error(said, silent) if code else silent
    return TargetError(
        f"{name} could not compile the kernels: {words}",
        hint=f"see that the toolkit is whole and supports this machine's {HOST}",
    )
