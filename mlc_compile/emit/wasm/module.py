"""What a WebAssembly module asks of who loads it, and what it offers: two of its sections.

https://webassembly.github.io/spec/core/binary/modules.html: magic and version, then sections of
a number, a size and a content; numbers are LEB128, names are counted UTF-8.
"""

from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"\0asm\1\0\0\0"
IMPORT, EXPORT = 2, 7  # numbers of sections

# Kinds of what is imported; their types, which we only step over.
FUNCTION, TABLE, MEMORY, GLOBAL, TAG = range(5)


@dataclass(frozen=True, slots=True)
class WasmModule:
    """(module, name) of each import, and the names of the exports, in order."""

    imports: tuple[tuple[str, str], ...]
    exports: tuple[str, ...]


def read_module(content: bytes) -> WasmModule:
    """Read a module; ValueError if it is none, or ends early."""
    if not content.startswith(MAGIC):
        raise ValueError("it does not begin as a WebAssembly module of version 1")
    try:
        sections = _sections(_Reader(content, len(MAGIC)))
        return WasmModule(
            imports=_imports(sections.get(IMPORT)), exports=_exports(sections.get(EXPORT))
        )
    except (IndexError, UnicodeDecodeError) as e:
        raise ValueError("it ends in the middle of a section") from e


@dataclass(slots=True)
class _Reader:
    """A place in bytes; IndexError past their end."""

    content: bytes
    at: int = 0

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.content):
            raise IndexError(size)
        self.at += size
        return self.content[self.at - size : self.at]

    def name(self) -> str:
        return self.take(self.number()).decode()


def _sections(reader: _Reader) -> dict[int, _Reader]:
    found = {}
    while reader.at < len(reader.content):
        number = reader.byte()
        found[number] = _Reader(reader.take(reader.number()))
    return found


def _imports(reader: _Reader | None) -> tuple[tuple[str, str], ...]:
    if reader is None:
        return ()
    found = []
    for _ in range(reader.number()):
        found.append((reader.name(), reader.name()))
        _skip_type(reader, reader.byte())
    return tuple(found)


def _skip_type(reader: _Reader, kind: int) -> None:
    if kind == FUNCTION:
        reader.number()
    elif kind == GLOBAL:
        reader.take(2)
    elif kind == TAG:
        reader.take(1)
        reader.number()
    else:
        if kind == TABLE:
            reader.byte()
        limits = reader.byte()
        for _ in range(1 + limits % 2):  # the most is told by the lowest bit
            reader.number()


def _exports(reader: _Reader | None) -> tuple[str, ...]:
    if reader is None:
        return ()
    found = []
    for _ in range(reader.number()):
        found.append(reader.name())
        reader.byte()
        reader.number()
    return tuple(found)
