"""What is in a fat binary, and whether it is all that was asked for.

A compiler may end without an error and still have written something else: a wrapper that
fails, a toolkit of mixed releases. Nobody would notice before a GPU loads it.

Layout, little-endian (the toolkit's fatbinary_section.h names the magic):

    file    u32 magic, u16 version, u16 size of this header, u64 size of the entries
    entry   u16 kind, u16 version, u32 size of this header, u64 size of the code;
            u32 architecture at byte 28 of the header
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mlc_compile.emit.cuda.compiler import Fatbin
from mlc_compile.emit.cuda.resources import arch_number
from mlc_compile.errors import TargetError, listing

MAGIC: Final = 0xBA55ED50
PTX: Final = 1  # kinds of entries
MACHINE_CODE: Final = 2
_FILE: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQ")
_ARCH_AT: Final = 28
_ARCH: Final = struct.Struct("<I")


def entries(code: bytes) -> tuple[tuple[int, int], ...]:
    """(kind, number of the architecture) of everything in a fat binary; ValueError if it is none.

    Every entry has to have code, and the last to end where the file does.
    """
    if len(code) < _FILE.size:
        raise ValueError("it is too short")
    magic, _, header, size = _FILE.unpack_from(code)
    if magic != MAGIC or header < _FILE.size or header + size != len(code):
        raise ValueError("its header is not one")
    return tuple(_entries(code, header))


def check(name: str, made: Fatbin, archs: Sequence[str], kernels: Iterable[str]) -> None:
    """TargetError if the compiler `name` left out an architecture, PTX or a kernel's report."""
    fault = _fault(made, archs, kernels)
    if fault:
        raise TargetError(
            f"{name} ended without an error, but {fault}",
            hint="it is not whole, or something else bears its name: install it again",
        )


def _fault(made: Fatbin, archs: Sequence[str], kernels: Iterable[str]) -> str:
    try:
        found = set(entries(made.code))
    except ValueError as e:
        return f"what it wrote is no fat binary: {e}"
    absent = [arch for arch in archs if (MACHINE_CODE, arch_number(arch)) not in found]
    if absent:
        return f"it wrote no machine code for {listing(absent)}"
    newest = max(archs, key=arch_number)
    if (PTX, arch_number(newest)) not in found:
        return f"it wrote no PTX of {newest}"
    told = {(one.kernel, one.arch) for one in made.resources}
    silent = [f"{k} on {arch}" for k in kernels for arch in archs if (k, arch) not in told]
    return f"it does not tell what is taken by {listing(silent, 3)}" if silent else ""


def _entries(code: bytes, at: int) -> Iterator[tuple[int, int]]:
    while at < len(code):
        if at + _ARCH_AT + _ARCH.size > len(code):
            raise ValueError("its last entry is cut off")
        kind, _, header, size = _ENTRY.unpack_from(code, at)
        (arch,) = _ARCH.unpack_from(code, at + _ARCH_AT)
        end = at + header + size
        if header < _ARCH_AT + _ARCH.size or size == 0 or end > len(code):
            raise ValueError("an entry is empty or cut off")
        yield kind, arch
        at = end
