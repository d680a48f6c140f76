"""MetaSchedule's traces as choices: what names their kernel, and how one is replayed.

A trace is the list of schedule primitives that MetaSchedule drew for a kernel which TVM wrote.
It is for one shape, so a kernel with a symbolic one has none. Replaying takes TVM's schedules
alone; the same trace gives the same kernel.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError, Trace
from tvm_ffi import structural_hash

from mlc_compile.records import Workload
from mlc_compile.records.record import canonical

FAMILY: Final = "metaschedule"
VERSION: Final = 1  # of all these spaces
# What a trace of another kernel, or a damaged one, may meet.
UNFIT: Final = (ScheduleError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


def workload_of(func: tirx.PrimFunc) -> Workload:
    """By its structure, whatever it is called: `parameters` only for people."""
    shapes = [f"{p.dtype}[{','.join(map(_extent, p.shape))}]" for p in buffers(func)]
    structure = f"{structural_hash(func) % 2**64:016x}"
    return Workload.of(FAMILY, parameters=" ".join(shapes), structure=structure)


def _extent(dim: tirx.Expr) -> str:
    return str(int(dim)) if isinstance(dim, tirx.IntImm) else "any"


def buffers(func: tirx.PrimFunc) -> list[Any]:
    """Its parameters that are no scalars."""
    return [param for param in func.params if tirx.is_buffer_var(param)]


def space_version(default: tirx.PrimFunc) -> int:
    """Of the space of a kernel whose schedule by the rules that is."""
    return zlib.crc32(canonical((VERSION, f"{structural_hash(default) % 2**64:016x}")))


def replayed(func: tirx.PrimFunc, trace: list[Any]) -> tirx.PrimFunc | None:
    """`func` as the trace schedules it; None where that is no trace of it."""
    schedule = s_tir.Schedule(func)
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except UNFIT:
        return None
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


@dataclass(frozen=True, slots=True)
class TraceSpace:
    """Points are traces as JSON texts, drawn by MetaSchedule; the empty text is the rules' own."""

    func: tirx.PrimFunc
    by_rules: tirx.PrimFunc
    designs: tuple[str, ...]

    @property
    def default(self) -> str:
        """What the rules choose."""
        return ""

    @property
    def version(self) -> int:
        """Another where the rules schedule otherwise."""
        return space_version(self.by_rules)

    @property
    def size(self) -> int:
        """Designs, and the default."""
        return 1 + len(self.designs)

    def points(self) -> Iterator[str]:
        """Every one once, the default first."""
        yield self.default
        yield from self.designs

    def build(self, point: str) -> tirx.PrimFunc:
        """The kernel; ValueError where the trace is none of it."""
        if point == self.default:
            return self.by_rules
        built = replayed(self.func, msgspec.json.decode(point))
        if built is None:
            raise ValueError("the trace does not replay")
        return built

    def choice(self, point: str) -> list[Any]:
        """What a record holds."""
        trace: list[Any] = msgspec.json.decode(point or "[]")
        return trace

    def point(self, choice: Mapping[str, object] | list[Any]) -> str | None:
        """The point that a record names; None if that does not replay."""
        if not isinstance(choice, list) or replayed(self.func, choice) is None:
            return None
        return canonical(choice).decode()

    def features(self, point: str) -> dict[str, float]:
        """The decisions that were drawn, each number by its place, and how often what is done."""
        instructions, decisions = self.choice(point) or ([], [])
        found: dict[str, float] = {}
        for name, *_ in instructions:
            found[f"count {name}"] = found.get(f"count {name}", 0.0) + 1
        for place, value in decisions:
            for i, number in enumerate(value if isinstance(value, list) else [value]):
                found[f"decision {place}.{i}"] = float(number)
        return found

    def mutated(self, point: str, random: Random) -> str:
        """Another design: MetaSchedule drew them all before."""
        return random.choice(self.designs) if self.designs else point

    def crossed(self, one: str, other: str, random: Random) -> str:
        """One of the two."""
        return random.choice((one, other))
