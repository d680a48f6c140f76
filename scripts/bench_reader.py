"""The memory's speed, the roof of decoding: read by a small C program that is compiled here."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench_contenders import Failed

SOURCE: Final = Path(__file__).with_name("bench_reader.c")
BUFFER: Final = 1 << 30  # bytes; far more than any cache holds
SWEEPS: Final = 4  # of which the best counts, as in `mlc-compile bench`


def build_reader(compiler: str, directory: Path) -> Path:
    """Compile it for this machine's CPU into `directory`; Failed if that cannot be done."""
    if shutil.which(compiler) is None:
        raise Failed(f"there is no compiler {compiler}")
    program = directory / "bench_reader"
    command = [compiler, "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise Failed(f"{compiler} fails: {lines[0]}")
    return program


def read_speed(program: Path, threads: int) -> float:
    """Bytes a second that `threads` threads read together; Failed if it cannot run."""
    command = [str(program), str(threads), str(BUFFER), str(SWEEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip())
    return float(done.stdout)
