"""A linked library is read again and held against its target's row, before anyone ships it.

Of the file: format, machine, the oldest system that loads it, the libraries that it loads, and
that each function which it leaves to others is one they have. A linker that may leave symbols
undefined reports nothing, and what is missing would come out on the user's device.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.artifact import LibraryCheck
from mlc_compile.emit.link.binary import (
    ARCHIVE,
    REPORT_HINT,
    Binary,
    Import,
    members,
    read,
    undefined,
)
from mlc_compile.emit.link.stand_ins import WINDOWS_DLL
from mlc_compile.emit.link.symbols import FFI, OF_SYSTEM
from mlc_compile.emit.wasm.abi import EXPORTS, IMPORTS
from mlc_compile.errors import TargetError, listing
from mlc_compile.target import ARCHS, HOST, System, Target

OTHER_LINKER: Final = "pip install 'mlc_compile[cross]' and take cc, gcc and clang off the PATH"
GLIBC: Final = "GLIBC_"
EXPORT: Final = "__tvm_ffi_"  # before the names that TVM's loader looks up
BLOB: Final = "__tvm_ffi__library_bin"
PART_OF_WINDOWS: Final = "api-ms-win-crt-"  # the C runtime of Windows 10, in parts


@dataclass(frozen=True, slots=True)
class Expected:
    """What the libraries of a system are like."""

    format: str
    needed: frozenset[str]  # at most these
    oldest: str = ""  # how a version of the system is called
    own_name: str = ""  # before the file name, in what the library calls itself; "": any
    exports: frozenset[str] = frozenset()  # all of these; empty: what TVM's loader looks for
    imports: Mapping[str, frozenset[str]] | None = None  # by library, if these are all it has


EXPECTED: Final[dict[System, Expected]] = {
    "linux": Expected("ELF", frozenset({"libc.so.6", "libm.so.6"}), "glibc"),
    "android": Expected("ELF", frozenset({"libc.so", "libm.so", "libtvm_ffi.so"}), "", "{}"),
    "macos": Expected("Mach-O", frozenset({"/usr/lib/libSystem.B.dylib"}), "macOS", "@rpath/{}"),
    "ios": Expected("Mach-O", frozenset(), "iOS"),
    "windows": Expected("PE", frozenset({WINDOWS_DLL, "KERNEL32.dll"}), "Windows"),
    "web": Expected("WebAssembly", frozenset(IMPORTS), exports=EXPORTS, imports=IMPORTS),
}

# A whole string in the file that is an absolute path, of Unix or Windows; the systems' own
# libraries are named by such.
PATHS: Final = re.compile(rb"\0((?:/[\w.+@ -]+){2,}|[A-Z]:\\[\w.+@ \\-]{4,})(?=\0)")
SYSTEM_PATHS: Final = (b"/usr/lib/", b"/System/Library/")


def check_library(path: Path, target: Target) -> LibraryCheck:
    """Read `path` and compare it with the row it was made for.

    TargetError names the library, what was found and what was expected.
    """
    content = path.read_bytes()
    expected = EXPECTED[target.system]
    archive = content.startswith(ARCHIVE)
    parts = members(content) if archive else {path.name: content}
    binaries = [read(data, name) for name, data in parts.items()]
    for one in binaries:
        _check_machine(one, expected, path, target)
        _check_names(one, expected, path, target)
    _check_loads(binaries, archive, path, target)
    imports = _left_to_others(binaries)
    _check_symbols(imports, path, target)
    _check_paths(content, path, target)
    return LibraryCheck(
        format=f"{expected.format} archive" if archive else expected.format,
        arch=binaries[0].arch,
        oldest=_check_oldest(binaries, imports, expected, path, target),
        needed=tuple(sorted({name for one in binaries for name in one.needed})),
        imports=tuple(sorted({i.symbol for i in imports})),
        prefix=_prefix(binaries) if archive else "",
    )


def _prefix(binaries: Iterable[Binary]) -> str:
    """What stands before the name of TVM's blob of modules."""
    names = (name for one in binaries for name in one.defines)
    return next(n.removesuffix(BLOB) for n in names if n.endswith(BLOB))


def _check_machine(one: Binary, expected: Expected, path: Path, target: Target) -> None:
    wanted = (expected.format, ARCHS.get(target.arch, target.arch))
    if (one.format, one.arch) != wanted:
        found = f"is {one.format} for {one.arch}"
        raise _refused(path, target, found, f"{wanted[0]} for {wanted[1]}")


def _check_names(one: Binary, expected: Expected, path: Path, target: Target) -> None:
    """The libraries it loads, and what it calls itself."""
    strange = [n for n in one.needed if not _may_be_loaded(n, expected)]
    if strange:
        wanted = f"at most {listing(sorted(expected.needed))}"
        raise _refused(path, target, f"loads {listing(strange)}", wanted)
    own = expected.own_name.format(path.name)
    if own and one.name != own:
        raise _refused(path, target, f"calls itself {one.name!r}", repr(own))


def _may_be_loaded(name: str, expected: Expected) -> bool:
    return name in expected.needed or name.startswith(PART_OF_WINDOWS)


def _check_loads(binaries: Iterable[Binary], archive: bool, path: Path, target: Target) -> None:
    """Its loader finds what it looks for; Apple silicon runs no unsigned code."""
    together = list(binaries)
    wanted = EXPECTED[target.system].exports
    if wanted:
        missing = sorted(wanted.difference(*(one.defines for one in together)))
        if missing:
            raise _refused(path, target, "lacks " + listing(missing), "all that the page calls")
        return
    if not any(name.startswith(EXPORT) for one in together for name in one.defines):
        raise _refused(path, target, "exports no function", f"names that begin with {EXPORT}")
    if target.system == "macos" and not archive and not all(one.signed for one in together):
        raise _refused(path, target, "is not signed", "a code signature, ad hoc at least")


def _left_to_others(binaries: Iterable[Binary]) -> tuple[Import, ...]:
    """What the files together ask for; one that has it answers for the others."""
    together = list(binaries)
    open_names = set(undefined(together))
    asked = {i.symbol: i for one in together for i in one.imports if i.symbol in open_names}
    return tuple(asked.values())


def _check_symbols(imports: Iterable[Import], path: Path, target: Target) -> None:
    for asked in imports:
        if not _somebody_has(asked, target.system):
            whose = f" of {asked.library}" if asked.library else ""
            wanted = (
                "only functions of TVM's runtime, libc and libm"
                if EXPECTED[target.system].imports is None
                else "only functions that the page provides"
            )
            raise _refused(path, target, f"asks for {asked.symbol}{whose}", wanted)


def _somebody_has(asked: Import, system: System) -> bool:
    """Whether what the library is loaded with has the function.

    A version or an import table says that the linker found it in a library of the system;
    else it must be TVM's, or known to the system. A weak one may be absent.
    """
    complete = EXPECTED[system].imports
    if complete is not None:
        return asked.symbol in complete.get(asked.library, frozenset())
    found = bool(asked.version) or system == "windows"
    if asked.symbol in FFI:
        return not asked.version and asked.library in {"", WINDOWS_DLL}
    if asked.library == WINDOWS_DLL:
        return False
    return asked.weak or found or asked.symbol in OF_SYSTEM.get(system, frozenset())


def _check_oldest(
    binaries: Iterable[Binary],
    imports: Iterable[Import],
    expected: Expected,
    path: Path,
    target: Target,
) -> str:
    """The oldest system that loads all of it, which must be no newer than the row says."""
    told = [one.oldest for one in binaries if one.oldest is not None]
    told += [_version(i.version[len(GLIBC) :]) for i in imports if i.version.startswith(GLIBC)]
    if not told:
        return ""
    oldest = max(told)
    promised = _promised(target)
    if promised is not None and _padded(oldest) > _padded(promised):
        raise _refused(
            path,
            target,
            f"needs {expected.oldest} {_dotted(oldest)}",
            f"{expected.oldest} {_dotted(promised)} or older",
            OTHER_LINKER if target.system == "linux" else REPORT_HINT,
        )
    return f"{expected.oldest} {_dotted(oldest)}"


def _promised(target: Target) -> tuple[int, ...] | None:
    """The version at the end of zig's name of the triple; `cpu` promises no other machine."""
    if target.name == HOST:
        return None
    numbers = re.search(r"[a-z]\.([\d.]+)$", target.zig)
    return _version(numbers[1]) if numbers else None


def _check_paths(content: bytes, path: Path, target: Target) -> None:
    """No directory of this machine: it would differ elsewhere, and tell who built it."""
    found = [m[1] for m in PATHS.finditer(content) if not m[1].startswith(SYSTEM_PATHS)]
    here = {os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~"), sys.prefix}
    places = [os.fsencode(d) + b"/" for d in sorted(here) if len(d) > 1]
    found += [place for place in places if re.search(re.escape(place) + rb"\w{3}", content)]
    if found:
        text = found[0].decode(errors="replace")
        raise _refused(path, target, f"contains the path {text!r}", "no absolute path")


def _refused(
    path: Path, target: Target, found: str, wanted: str, hint: str = REPORT_HINT
) -> TargetError:
    message = f"{path.name} for {target.name} {found}, expected {wanted}"
    return TargetError(message, hint=hint)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _padded(version: tuple[int, ...]) -> tuple[int, ...]:
    return (*version, 0, 0, 0)[:3]


def _dotted(version: tuple[int, ...]) -> str:
    """2.17, 13.0: a third part is told only if it is not zero."""
    shown = version[:2] if len(version) > 2 and not any(version[2:]) else version
    return ".".join(map(str, shown))
