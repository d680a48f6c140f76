"""A record: one choice for one kernel, with what it took and what the default took beside it."""

import hashlib
import math
from functools import cached_property
from typing import Any, Final

import msgspec

from mlc_compile.artifact import Struct

Choice = dict[str, int] | list[Any]  # parameters of a kernel family; a MetaSchedule trace as JSON
HOPELESS: Final = 1e12  # microseconds: TVM writes 1e10 seconds where nothing was measured


class Workload(Struct, frozen=True, dict=True):
    """What is computed, whatever the schedule: the family and facts sorted by name.

    `Workload.of("cpu.int8_gemm", n=3072, k=1024, m=16, scheme="q4f16_1")`
    """

    family: str
    facts: tuple[tuple[str, int | str], ...]

    @classmethod
    def of(cls, family: str, **facts: int | str) -> "Workload":
        """The workload of named facts, in any order."""
        return cls(family=family, facts=tuple(sorted(facts.items())))

    def __post_init__(self) -> None:
        """ValueError unless the facts are sorted by name, each named once."""
        names = [name for name, _ in self.facts]
        if names != sorted(set(names)):
            raise ValueError(f"the facts of {self.family} are not sorted by name: {names}")

    @cached_property
    def digest(self) -> str:
        """sha256 of its canonical JSON, in hexadecimal."""
        return hashlib.sha256(canonical(self)).hexdigest()

    @property
    def title(self) -> str:
        """For people: `cpu.int8_gemm k=1024 n=6144`, the family and its facts that are not zero."""
        facts = sorted(self.facts, key=lambda fact: (isinstance(fact[1], str), fact[0]))
        return " ".join([self.family, *(f"{name}={value}" for name, value in facts if value)])


class Record(Struct, frozen=True, omit_defaults=True):
    """`choice` took `microseconds` (the median) where candidate 0 of the same run, which is what
    the rules choose, took `default_microseconds`.

    `space` is the version of the family's parameters, and of its candidate 0: a rule that makes
    another default is another space. `noise` is relative: 0.02 for 2 %. `history` is how the run
    came to it, for the report: (trials so far, the best time over the default's) from (0, 1.0) at
    each that was faster when first timed; empty in records that were made before there was one.
    """

    workload: Workload
    space: int
    choice: Choice
    microseconds: float
    default_microseconds: float
    noise: float
    trials: int
    seed: int
    history: tuple[tuple[int, float], ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster than the default of the same run."""
        return self.default_microseconds / self.microseconds

    @property
    def wins(self) -> bool:
        """Whether it beat the default by more than the noise; only such a record is ever used."""
        return self.microseconds < self.default_microseconds * (1 - self.noise)

    @property
    def fault(self) -> str:
        """Why this cannot have been measured; empty where it can."""
        times = {
            "microseconds": self.microseconds,
            "default_microseconds": self.default_microseconds,
        }
        for name, value in times.items():
            if not (math.isfinite(value) and 0 < value < HOPELESS):
                return f"{name} must be a time above 0, got {value}"
        if not (math.isfinite(self.noise) and self.noise >= 0):
            return f"noise must be a share of 0 or more, got {self.noise}"
        if not all(math.isfinite(ratio) and ratio > 0 for _, ratio in self.history):
            return f"history must have times above 0, got {self.history}"
        return ""


def canonical(value: object) -> bytes:
    """The one JSON text of a value: keys sorted, no space."""
    return msgspec.json.encode(value, order="sorted")
