"""The layout of a SPIR-V module: sections in the order that the specification demands.

A section is a list of words, to which instructions are appended while a kernel is walked.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .enumerants import (
    ADDRESSING_LOGICAL,
    GENERATOR,
    MAGIC,
    MEMORY_GLSL450,
    MODE_LOCAL_SIZE,
    MODEL_GLCOMPUTE,
    NO_CONTROL,
    VERSION_1_3,
    Capability,
    Decoration,
)
from .opcodes import Op

GLSL: Final = "GLSL.std.450"


def append(section: list[int], op: Op, *operands: int) -> None:
    """Add an instruction: its length and number in one word, then its operands."""
    section.append((len(operands) + 1) << 16 | op)
    section.extend(operands)


def text(value: str) -> tuple[int, ...]:
    """A literal string: UTF-8, ended by a zero byte, filled up with zeros to whole words."""
    raw = value.encode()
    raw += b"\0" * (4 - len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


@dataclass(slots=True)
class Module:
    """A module with one function, its entry point, while it grows."""

    entry: str
    bound: int = 1  # the next result id
    capabilities: set[Capability] = field(default_factory=lambda: {Capability.Shader})
    extensions: set[str] = field(default_factory=set)
    inputs: list[int] = field(default_factory=list)  # of the entry point's interface
    names: list[int] = field(default_factory=list)
    decorations: list[int] = field(default_factory=list)
    declarations: list[int] = field(default_factory=list)
    variables: list[int] = field(default_factory=list)  # the function's, first in its first block
    prologue: list[int] = field(default_factory=list)  # what follows them there
    code: list[int] = field(default_factory=list)
    glsl: int = 0  # the id of the extended instructions
    main: int = 0
    first: int = 0  # the label of the first block
    _unique: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.glsl, self.main, self.first = self.fresh(), self.fresh(), self.fresh()

    def fresh(self) -> int:
        """An id that nothing has."""
        self.bound += 1
        return self.bound - 1

    def name(self, target: int, name: str) -> None:
        """Tell a debugger what something is called."""
        append(self.names, Op.Name, target, *text(name))

    def decorate(self, target: int, decoration: Decoration, *operands: int) -> None:
        """Say something of a result."""
        append(self.decorations, Op.Decorate, target, decoration, *operands)

    def decorate_member(self, struct: int, member: int, decoration: Decoration, *more: int) -> None:
        """Say something of a member of a struct type."""
        append(self.decorations, Op.MemberDecorate, struct, member, decoration, *more)

    def declared(self, *key: int) -> int | None:
        """The id of what was declared under a key before."""
        return self._unique.get(key)

    def declare_type(self, op: Op, *operands: int) -> int:
        """The id of a type; equal ones are declared once."""
        found = self._unique.get((op, *operands))
        if found is None:
            found = self._unique[(op, *operands)] = self.fresh()
            append(self.declarations, op, found, *operands)
        return found

    def declare(self, op: Op, type_id: int, *operands: int) -> int:
        """The id of a constant; equal ones are declared once."""
        key = (op, type_id, *operands)
        found = self._unique.get(key)
        if found is None:
            found = self._unique[key] = self.declare_apart(op, type_id, *operands)
        return found

    def declare_apart(self, op: Op, type_id: int, *operands: int) -> int:
        """The id of a global variable, each one its own."""
        made = self.fresh()
        append(self.declarations, op, type_id, made, *operands)
        return made

    def binary(self, local_size: tuple[int, int, int]) -> bytes:
        """All sections, with the header; little-endian words."""
        void = self.declare_type(Op.TypeVoid)
        signature = self.declare_type(Op.TypeFunction, void)
        function: list[int] = []
        append(function, Op.Function, void, self.main, NO_CONTROL, signature)
        append(function, Op.Label, self.first)
        function += [*self.variables, *self.prologue, *self.code]
        append(function, Op.Return)
        append(function, Op.FunctionEnd)
        sections = (
            self._preamble(local_size),
            self.names,
            self.decorations,
            self.declarations,
            function,
        )
        return _packed([MAGIC, VERSION_1_3, GENERATOR, self.bound, 0], *sections)

    def _preamble(self, local_size: tuple[int, int, int]) -> list[int]:
        words: list[int] = []
        for capability in sorted(self.capabilities):
            append(words, Op.Capability, capability)
        for extension in sorted(self.extensions):
            append(words, Op.Extension, *text(extension))
        append(words, Op.ExtInstImport, self.glsl, *text(GLSL))
        append(words, Op.MemoryModel, ADDRESSING_LOGICAL, MEMORY_GLSL450)
        append(words, Op.EntryPoint, MODEL_GLCOMPUTE, self.main, *text(self.entry), *self.inputs)
        append(words, Op.ExecutionMode, self.main, MODE_LOCAL_SIZE, *local_size)
        append(words, Op.Name, self.main, *text(self.entry))
        return words


def _packed(*sections: Iterable[int]) -> bytes:
    words = [word for section in sections for word in section]
    return struct.pack(f"<{len(words)}I", *words)
