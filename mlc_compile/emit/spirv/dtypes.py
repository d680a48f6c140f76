"""Types of TIR values, and how they are cut into what SPIR-V has.

A vector of more than four lanes is several values of at most four, its chunks. Integers of 8
and 16 bits are held in 32 bits, extended by their sign or by zeros, so that only loads and
stores need the narrow type, and a device no narrow arithmetic; 64-bit ones are held in 32 bits
too, which is right for what indexes memory. Integers have no sign in SPIR-V: instructions do.
"""

import functools
import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["bool", "int", "uint", "float"]

WIDEST: Final = 4  # lanes of a SPIR-V vector
WORD: Final = 32  # bits


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar or a vector of `lanes`."""

    kind: Kind
    bits: int
    lanes: int = 1

    @property
    def scalar(self) -> "Type":
        """The type of one lane."""
        return self.of(1)

    def of(self, lanes: int) -> "Type":
        """So many lanes of it."""
        return Type(self.kind, self.bits, lanes)

    @property
    def integer(self) -> bool:
        """Whether it is an integer, of either sign."""
        return self.kind in ("int", "uint")

    @property
    def narrow(self) -> bool:
        """Whether it is an integer of less bits than hold it."""
        return self.integer and self.bits < WORD

    @property
    def half(self) -> bool:
        """Whether it is float16."""
        return self.kind == "float" and self.bits == 16

    @property
    def held_bits(self) -> int:
        """Of a lane while it is computed with."""
        return WORD if self.integer else self.bits

    @property
    def stored_bits(self) -> int:
        """Of a lane in a buffer: truth takes a byte."""
        return 8 if self.kind == "bool" else self.bits

    @property
    def chunks(self) -> tuple[int, ...]:
        """Lanes of each SPIR-V value that it is: 6 -> (4, 2)."""
        return chunks_of(self.lanes)

    def __str__(self) -> str:
        name = "bool" if self.kind == "bool" else f"{self.kind}{self.bits}"
        return name if self.lanes == 1 else f"{name}x{self.lanes}"


BOOL: Final = Type("bool", 1)
INT32: Final = Type("int", 32)
UINT32: Final = Type("uint", 32)
FLOAT32: Final = Type("float", 32)
FLOAT16: Final = Type("float", 16)


@dataclass(frozen=True, slots=True)
class Value:
    """A computed value: a result id for each chunk of its type."""

    type: Type
    ids: tuple[int, ...]


@functools.cache
def chunks_of(lanes: int) -> tuple[int, ...]:
    """As many fours as there are, then the rest."""
    fours, rest = divmod(lanes, WIDEST)
    return (WIDEST,) * fours + ((rest,) if rest else ())


@functools.cache
def parse(dtype: str) -> Type | None:
    """`float16x4` -> four float16; None if SPIR-V for these devices has nothing like it."""
    match = re.fullmatch(r"(bool|u?int|float)(\d*)(?:x(\d+))?", dtype)
    if match is None:
        return None
    kind, bits, lanes = match.groups()
    known = Type(_KINDS[kind], int(bits or 1), int(lanes or 1))
    return known if (known.kind, known.bits) in _KNOWN else None


_KINDS: Final[dict[str, Kind]] = {"bool": "bool", "int": "int", "uint": "uint", "float": "float"}
_KNOWN: Final = {
    ("bool", 1),
    *((kind, bits) for kind in ("int", "uint") for bits in (8, 16, 32)),
    ("int", 64),
    ("float", 16),
    ("float", 32),
}
