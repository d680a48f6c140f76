"""SPIR-V binaries as lists of instructions, for assertions about them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mlc_compile.emit.spirv.enumerants import Decoration
from mlc_compile.emit.spirv.opcodes import Op

HEADER = 5  # words

# How many ids stand before the operands: result type, result.
TYPED = {
    op
    for op in Op
    if op >= Op.ConstantTrue
    and op
    not in {
        Op.Store,
        Op.Decorate,
        Op.MemberDecorate,
        Op.FunctionEnd,
        Op.ControlBarrier,
        Op.LoopMerge,
        Op.SelectionMerge,
        Op.Label,
        Op.Branch,
        Op.BranchConditional,
        Op.Return,
    }
} | {Op.ExtInst}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its number and all operands after it."""

    op: Op
    operands: tuple[int, ...]

    @property
    def result(self) -> int:
        return self.operands[1] if self.op in TYPED else self.operands[0]

    @property
    def type(self) -> int:
        return self.operands[0]

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.operands[2:] if self.op in TYPED else self.operands[1:]


class Code:
    """A module that is asked questions."""

    def __init__(self, code: bytes) -> None:
        self.words = struct.unpack(f"<{len(code) // 4}I", code)
        self.instructions = list(_instructions(self.words))

    def all(self, *ops: Op) -> list[Instruction]:
        """The instructions of these kinds, in order."""
        return [i for i in self.instructions if i.op in ops]

    def one(self, op: Op) -> Instruction:
        (found,) = self.all(op)
        return found

    def count(self, *ops: Op) -> int:
        return len(self.all(*ops))

    def decorated(self, decoration: Decoration) -> set[int]:
        """The ids that have a decoration."""
        return {i.operands[0] for i in self.all(Op.Decorate) if i.operands[1] == decoration}

    def constant(self, id_: int) -> int:
        """The word of a constant."""
        return next(i.operands[2] for i in self.all(Op.Constant) if i.result == id_)

    def named(self, name: str) -> int:
        """The id that a name was given to."""
        return next(i.operands[0] for i in self.all(Op.Name) if text(i.operands[1:]) == name)

    def extended(self) -> list[int]:
        """The numbers of all GLSL instructions, in order."""
        return [i.operands[3] for i in self.all(Op.ExtInst)]


def text(words: tuple[int, ...]) -> str:
    raw = struct.pack(f"<{len(words)}I", *words)
    return raw.partition(b"\0")[0].decode()


def _instructions(words: tuple[int, ...]) -> Iterator[Instruction]:
    at = HEADER
    while at < len(words):
        length, op = words[at] >> 16, words[at] & 0xFFFF
        yield Instruction(Op(op), words[at + 1 : at + length])
        at += length
