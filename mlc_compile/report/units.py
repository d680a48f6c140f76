"""Numbers as people read them: few digits, and a unit or a prefix."""

from collections.abc import Sequence
from typing import Final

Unit = tuple[int, str]  # how many it stands for, and its name

BINARY: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
PREFIXES: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))


def unit_of(number: float, units: Sequence[Unit]) -> Unit:
    """The largest of `units` that `number` fills, the last one if it fills none."""
    return next((unit for unit in units if number >= unit[0]), units[-1])


def size(nbytes: int) -> str:
    """`1.5 MiB`."""
    unit, name = unit_of(nbytes, BINARY)
    return f"{nbytes} B" if unit == 1 else f"{nbytes / unit:.1f} {name}"


def amount(number: float) -> str:
    """`1.5 G`: three digits and a prefix."""
    unit, prefix = unit_of(number, PREFIXES)
    return f"{number / unit:.3g} {prefix}".rstrip()
