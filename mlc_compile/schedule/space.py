"""What may be tuned about a kernel: knobs with literal choices, and the rules' own point.

A point of a space is a frozen dataclass of integers, the same that the kernel's builder
takes, so that what is searched is what is built. A record holds it as a dict.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from random import Random
from typing import Any, Final, Generic, TypeVar

from mlc_compile.records.record import canonical

P = TypeVar("P")  # a frozen dataclass of int fields

VERSION: Final = 1  # of all spaces: to be raised when a knob comes to mean something else


def most_up_to(choices: Iterable[int], limit: int) -> int:
    """The largest of `choices` that is no more than `limit`; if none is, the least of all."""
    choices = tuple(choices)
    return max((n for n in choices if n <= limit), default=min(choices))


@dataclass(frozen=True, slots=True)
class Space(Generic[P]):
    """`default` is what a rule chooses without a record; `valid` says which points can be built.

    `knobs` maps a field of the point to its choices; a field that is no knob stays as it is.
    """

    default: P
    knobs: Mapping[str, tuple[int, ...]]
    valid: Callable[[P], bool] = lambda _: True

    def __post_init__(self) -> None:
        unknown = set(self.knobs) - set(_choice(self.default))
        assert not unknown, f"{type(self.default).__name__} has no field {unknown}"

    @property
    def choices(self) -> dict[str, tuple[int, ...]]:
        """Of each knob, in order, with the default's own."""
        own = _choice(self.default)
        return {name: tuple(sorted({*some, own[name]})) for name, some in self.knobs.items()}

    @property
    def version(self) -> int:
        """Another where a knob means something else, or the rules choose another default.

        A record is a comparison with the default, so it ends with that.
        """
        facts = (VERSION, type(self.default).__name__, sorted(_choice(self.default).items()))
        return zlib.crc32(canonical(facts))

    @property
    def size(self) -> int:
        """How many valid points there are."""
        return sum(1 for _ in self.points())

    def points(self) -> Iterator[P]:
        """Every valid point once, the default first."""
        yield self.default
        names, columns = list(self.choices), list(self.choices.values())
        for values in product(*columns):
            point = self._with(dict(zip(names, values, strict=True)))
            if point != self.default and self.valid(point):
                yield point

    def choice(self, point: P) -> dict[str, int]:
        """What a record holds of a point: the knobs alone."""
        return {name: value for name, value in _choice(point).items() if name in self.knobs}

    def features(self, point: P) -> dict[str, float]:
        """What a cost model sees of a point."""
        return {name: float(value) for name, value in self.choice(point).items()}

    def point(self, choice: Mapping[str, object] | list[Any]) -> P | None:
        """The point that a record names; None if it is no valid point of this space."""
        choices = self.choices
        if isinstance(choice, list) or set(choice) != set(choices):
            return None
        if any(type(v) is not int or v not in choices[name] for name, v in choice.items()):
            return None
        point = self._with(choice)
        return point if point == self.default or self.valid(point) else None

    def mutated(self, point: P, random: Random) -> P:
        """`point` with one knob at another choice; itself where the draw is not valid."""
        choices = {name: some for name, some in self.choices.items() if len(some) > 1}
        if not choices:
            return point
        name = random.choice(list(choices))
        other = [c for c in choices[name] if c != _choice(point)[name]]
        return self._or(point, {name: random.choice(other)})

    def crossed(self, one: P, other: P, random: Random) -> P:
        """Each knob from one of two points; `one` itself where the draw is not valid."""
        parents = self.choice(one), self.choice(other)
        return self._or(one, {name: random.choice(parents)[name] for name in self.knobs})

    def _or(self, point: P, changed: Mapping[str, int]) -> P:
        drawn = replace(point, **changed)  # type: ignore[type-var]  # P is a dataclass
        return drawn if self.valid(drawn) else point

    def _with(self, choice: Mapping[str, object]) -> P:
        changed: Any = dict(choice)
        return replace(self.default, **changed)  # type: ignore[type-var]


def _choice(point: Any) -> dict[str, int]:
    return {field.name: getattr(point, field.name) for field in fields(point)}
