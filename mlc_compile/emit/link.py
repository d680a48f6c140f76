"""Which linker turns objects into a shared library for a target, and how it is called.

The system's C compiler links for this machine; `python -m ziglang` (the `cross` extra)
links for every target, this machine included. Both are asked for output that depends on
the objects alone: no build id, no timestamp, no path.
"""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.errors import TargetError, last_line
from mlc_compile.target import Target, triple_mismatch

CROSS_HINT: Final = "pip install 'mlc_compile[cross]' brings zig, which links for every target"
NO_SPACE: Final = "No space left on device"  # strerror(ENOSPC) in English
C_COMPILERS: Final = ("cc", "gcc", "clang")


@dataclass(frozen=True, slots=True)
class Linker:
    """A command that ends before `-o OUT OBJECTS`; `name` goes into the manifest."""

    name: str
    command: tuple[str, ...]

    def link(self, objects: Sequence[str], out: Path) -> None:
        """Write the shared library `out`; TargetError with the linker's words if it fails.

        A full disk is an OSError, as where we write ourselves.
        """
        done = subprocess.run(
            [*self.command, "-o", str(out), *objects],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # we read what it says
        )
        if done.returncode != 0:
            if NO_SPACE in done.stderr:
                raise OSError(errno.ENOSPC, NO_SPACE, str(out))
            words = last_line(done.stderr, f"exit code {done.returncode}")
            raise TargetError(f"{self.name} could not link {out.name}: {words}", hint=CROSS_HINT)


def find_linker(target: Target) -> Linker:
    """The first linker that can do `target` on this machine; TargetError if there is none."""
    for candidate in (_system_compiler, _zig):
        linker = candidate(target)
        if linker is not None:
            return linker
    need = "a C compiler or zig" if is_native(target) else "zig"
    raise TargetError(f"no linker for {target.name}: {need} is needed", hint=CROSS_HINT)


def is_native(target: Target) -> bool:
    """Whether the target's libraries have the format and instruction set of this machine."""
    return triple_mismatch(target.triple) is None


NATIVE_FLAGS: Final = {
    "linux": ("-shared", "-fPIC", "-s", "-Wl,--build-id=none"),
    "macos": ("-shared", "-Wl,-undefined,dynamic_lookup", "-Wl,-install_name,@rpath/lib.dylib"),
}
ZIG_FLAGS: Final = {
    "linux": ("-shared", "-s"),
    "macos": ("-shared", "-Wl,-undefined,dynamic_lookup", "-Wl,-install_name,@rpath/lib.dylib"),
}


def _system_compiler(target: Target) -> Linker | None:
    if not is_native(target):
        return None
    found = next((c for c in C_COMPILERS if shutil.which(c)), None)
    return None if found is None else Linker(found, (found, *NATIVE_FLAGS[target.system]))


def _zig(target: Target) -> Linker | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", target.zig)
    return Linker("zig", (*zig, *ZIG_FLAGS[target.system]))


def as_tvm_callback(linker: Linker, out: Path) -> Callable[..., None]:
    """`fcompile` for export_library: TVM hands over its objects, we link them to `out`."""

    def fcompile(_output: str, objects: Sequence[str], **_options: object) -> None:
        linker.link(objects, out)

    return fcompile
