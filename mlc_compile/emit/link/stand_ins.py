"""Files that stand, at link time, for libraries which only the target has.

A library is linked here against what it will be loaded with there: Android's libc, libm and
TVM's libtvm_ffi, or tvm_ffi.dll. All that a linker wants of these are their names and the
functions that they have, so we make such files, for just the functions that are asked for.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mlc_compile.emit.link.binary import REPORT_HINT
from mlc_compile.emit.link.symbols import FFI, MATH, MEMORY, SINCOS
from mlc_compile.emit.tool import run_tool
from mlc_compile.errors import TargetError, listing
from mlc_compile.target import System

# (zig, the functions asked for, a directory) -> names of files made there, for the linker.
StandIns = Callable[[Sequence[str], Sequence[str], Path], list[str]]

ANDROID: Final = {"libc.so": MEMORY, "libm.so": MATH | SINCOS, "libtvm_ffi.so": FFI}
ANDROID_FLAGS: Final = ("-target", "aarch64-linux-android", "-shared", "-nostdlib", "-s")
WINDOWS_DLL: Final = "tvm_ffi.dll"


def android(zig: Sequence[str], asked: Sequence[str], room: Path) -> list[str]:
    """A shared library of empty functions for each library that has some of those asked for."""
    unknown = sorted(set(asked).difference(*ANDROID.values()))
    if unknown:
        raise TargetError(
            f"no library of Android is known to have {listing(unknown)}", hint=REPORT_HINT
        )
    made = []
    for name, has in ANDROID.items():
        wanted = [symbol for symbol in asked if symbol in has]
        if wanted:
            source = room / f"{name}.s"
            source.write_text("".join(f".globl {s}\n.type {s},%function\n{s}:\n" for s in wanted))
            flags = (*ANDROID_FLAGS, f"-Wl,-soname,{name}", "-o", name)
            _make(name, [*zig, "cc", *flags, source.name], room)
            made.append(name)
    return made


def windows(zig: Sequence[str], asked: Sequence[str], room: Path) -> list[str]:
    """An import library of what is asked of TVM; zig itself has Windows' own."""
    wanted = [symbol for symbol in asked if symbol in FFI]
    definition = room / "tvm_ffi.def"
    definition.write_text("\n".join([f"LIBRARY {WINDOWS_DLL}", "EXPORTS", *wanted, ""]))
    out = room / "tvm_ffi.lib"
    flags = ("-m", "i386:x86-64", "-d", definition.name, "-l", out.name, "-D", WINDOWS_DLL)
    _make(out.name, [*zig, "dlltool", *flags], room)
    return [out.name]


STAND_INS: Final[dict[System, StandIns]] = {"android": android, "windows": windows}


def _make(name: str, command: Sequence[str], room: Path) -> None:
    run_tool(command, room, room / name, f"zig could not make a stand-in for {name}", REPORT_HINT)
