"""What a library or object file says of itself: format, machine, what it asks of whom.

Read with `lief`, which comes with the `cross` extra, and WebAssembly by ourselves; symbols are
spelled as in C, without Mach-O's leading underscore.
"""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from mlc_compile.emit.wasm.module import MAGIC, read_module
from mlc_compile.errors import TargetError

if TYPE_CHECKING:
    import lief

REPORT_HINT: Final = "report it with the output of `mlc-compile doctor`"
Format = Literal["ELF", "Mach-O", "PE", "COFF", "WebAssembly"]
ARCHS: Final = {"X86_64": "x86_64", "AMD64": "x86_64", "AARCH64": "aarch64", "ARM64": "aarch64"}
ARCHIVE: Final = b"!<arch>\n"
# Mach-O, mach-o/nlist.h: bits of a symbol's type, and the ordinals that name no library.
N_EXT: Final = 0x01
N_TYPE: Final = 0x0E
FLAT: Final = (0, 0xFE)


@dataclass(frozen=True, slots=True)
class Import:
    """A function that others must have."""

    symbol: str
    library: str = ""  # who has it; empty: whoever is loaded
    version: str = ""  # of the symbol, ELF
    weak: bool = False  # may be absent


@dataclass(frozen=True, slots=True)
class Binary:
    """One library or object file."""

    format: Format
    arch: str
    imports: tuple[Import, ...]
    defines: frozenset[str]  # what others may ask it for
    needed: tuple[str, ...] = ()  # libraries that are loaded with it
    name: str = ""  # what it calls itself: ELF's soname, Mach-O's install name
    oldest: tuple[int, ...] | None = None  # operating system that loads it, where it says
    signed: bool = False  # Mach-O: has a code signature


def can_read() -> bool:
    """Whether `lief` is installed."""
    return importlib.util.find_spec("lief") is not None


def read(content: bytes, name: str) -> Binary:
    """The binary in `content`; TargetError if it is none that we emit. `name` is for the error."""
    if content.startswith(MAGIC):
        return _wasm(content, name)
    import lief

    lief.logging.disable()  # else it writes to stderr about what it only skips
    parsed = lief.parse(BytesIO(content))
    readers: dict[type, Callable[[Any], Binary]] = {
        lief.ELF.Binary: _elf,
        lief.MachO.Binary: _macho,
        lief.PE.Binary: _pe,
        lief.COFF.Binary: _coff,
    }
    if type(parsed) not in readers:
        raise TargetError(
            f"{name} is no ELF, Mach-O, PE or WebAssembly file",
            hint=f"the linker wrote something else; {REPORT_HINT}",
        )
    return readers[type(parsed)](parsed)


def members(archive: bytes) -> dict[str, bytes]:
    """The object files of a static library, in order; `archive` begins with ARCHIVE.

    Header, 60 bytes: name 16, date 12, owner 6, group 6, mode 8, size 10, two marks. A name
    `#1/n` is found in the first n bytes of the content (BSD and Darwin).
    """
    found: dict[str, bytes] = {}
    at = len(ARCHIVE)
    while at + 60 <= len(archive):
        header = archive[at : at + 60]
        name, size = header[:16].decode("ascii").strip(), int(header[48:58])
        content = archive[at + 60 : at + 60 + size]
        if name.startswith("#1/"):
            length = int(name[3:])
            name, content = content[:length].rstrip(b"\0").decode(), content[length:]
        if not name.startswith("__.SYMDEF"):
            found[name] = content
        at += 60 + size + size % 2
    return found


def undefined(objects: Iterable[Binary]) -> tuple[str, ...]:
    """The functions that objects together ask for and do not have, sorted."""
    together = list(objects)
    has = frozenset[str]().union(*(one.defines for one in together))
    return tuple(sorted({i.symbol for one in together for i in one.imports} - has))


def read_objects(paths: Sequence[str]) -> list[Binary]:
    """`read` of object files."""
    return [read(Path(path).read_bytes(), Path(path).name) for path in paths]


def _wasm(content: bytes, name: str) -> Binary:
    """Its libraries are the modules that it imports from; ours have addresses of 32 bits."""
    try:
        module = read_module(content)
    except ValueError as e:
        raise TargetError(f"{name} is no whole WebAssembly module: {e}", hint=REPORT_HINT) from None
    return Binary(
        format="WebAssembly",
        arch="wasm32",
        imports=tuple(Import(asked, library=owner) for owner, asked in module.imports),
        defines=frozenset(module.exports),
        needed=tuple(sorted({owner for owner, _ in module.imports})),
    )


def _elf(parsed: "lief.ELF.Binary") -> Binary:
    import lief

    relocatable = parsed.header.file_type == lief.ELF.Header.FILE_TYPE.REL
    table = parsed.symtab_symbols if relocatable else parsed.dynamic_symbols
    linked = [s for s in table if s.name and s.binding != lief.ELF.Symbol.BINDING.LOCAL]
    soname = parsed.get(lief.ELF.DynamicEntry.TAG.SONAME)
    return Binary(
        format="ELF",
        arch=_arch(parsed.header.machine_type.name),
        imports=tuple(
            Import(
                str(s.name),
                version=_version(s),
                weak=s.binding == lief.ELF.Symbol.BINDING.WEAK,
            )
            for s in linked
            if s.shndx == 0
        ),
        defines=frozenset(str(s.name) for s in linked if s.shndx != 0),
        needed=tuple(str(n) for n in parsed.libraries),
        name=str(getattr(soname, "name", "")) if soname else "",
    )


def _version(symbol: "lief.ELF.Symbol") -> str:
    entry = symbol.symbol_version
    named = entry.symbol_version_auxiliary if entry is not None else None
    return str(named.name) if named is not None else ""


def _macho(parsed: "lief.MachO.Binary") -> Binary:
    import lief

    loaded = list(parsed.libraries)
    own = [d for d in loaded if d.command == lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    needed = tuple(str(d.name) for d in loaded if d not in own)
    linked = [s for s in parsed.symbols if s.raw_type & N_EXT]
    asked = [s for s in linked if s.raw_type & N_TYPE == 0]
    built = parsed.build_version
    object_file = parsed.header.file_type == lief.MachO.Header.FILE_TYPE.OBJECT
    return Binary(
        format="Mach-O",
        arch=_arch(parsed.header.cpu_type.name),
        imports=tuple(
            Import(
                str(s.name).removeprefix("_"),
                library="" if object_file else _owner(s.library_ordinal, needed),
            )
            for s in asked
        ),
        defines=frozenset(str(s.name).removeprefix("_") for s in linked if s not in asked),
        needed=needed,
        name=str(own[0].name) if own else "",
        oldest=tuple(built.minos) if built is not None else None,
        signed=bool(parsed.has_code_signature),
    )


def _owner(ordinal: int, needed: Sequence[str]) -> str:
    """The library that a two-level name points to."""
    return "" if ordinal in FLAT or ordinal > len(needed) else needed[ordinal - 1]


def _pe(parsed: "lief.PE.Binary") -> Binary:
    header = parsed.optional_header
    exports = parsed.get_export()
    return Binary(
        format="PE",
        arch=_arch(parsed.header.machine.name),
        imports=tuple(
            Import(str(entry.name), library=str(dll.name))
            for dll in parsed.imports
            for entry in dll.entries
        ),
        defines=frozenset(str(e.name) for e in exports.entries) if exports else frozenset(),
        needed=tuple(str(dll.name) for dll in parsed.imports),
        name=str(exports.name) if exports else "",
        oldest=(header.major_subsystem_version, header.minor_subsystem_version),
    )


def _coff(parsed: "lief.COFF.Binary") -> Binary:
    """A weak reference names a definition to fall back on: nothing is asked for."""
    import lief

    external = lief.COFF.Symbol.STORAGE_CLASS.EXTERNAL
    linked = [s for s in parsed.symbols if s.storage_class == external]
    return Binary(
        format="COFF",
        arch=_arch(parsed.header.machine.name),
        imports=tuple(Import(str(s.name)) for s in linked if s.section_idx == 0),
        defines=frozenset(str(s.name) for s in linked if s.section_idx != 0),
    )


def _arch(name: str) -> str:
    return ARCHS.get(name, name.lower())
