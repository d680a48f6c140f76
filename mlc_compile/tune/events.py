"""What tuning tells while it runs: frozen events, one JSON object a line for whoever reads them."""

from collections.abc import Callable

import msgspec

from mlc_compile.records import Choice


class TaskRow(msgspec.Struct, frozen=True):
    """A task as it begins: how often a token and a prompt of one chunk call it, and its space."""

    name: str
    calls: dict[str, int]
    points: int


class Untunable(msgspec.Struct, frozen=True):
    """What the model computes that has no space, and why."""

    name: str
    calls: int
    reason: str


class Planned(msgspec.Struct, frozen=True, tag_field="event", tag="tasks"):
    """All tasks, heaviest family first, before the first trial."""

    tasks: tuple[TaskRow, ...]
    untunable: tuple[Untunable, ...]


class Progressed(msgspec.Struct, frozen=True, tag_field="event", tag="trial"):
    """One candidate was measured, or failed; numbers are of its task so far."""

    task: str
    trials: int
    errors: int
    best_microseconds: float
    speedup: float  # of the best over the default, as estimated so far
    seconds: float  # since tuning began
    left_seconds: float | None  # None: there is no limit of time


class Rounded(msgspec.Struct, frozen=True, tag_field="event", tag="round"):
    """A round of one task is over."""

    task: str
    round: int
    trials: int
    errors: int
    speedup: float
    correlation: float | None  # of predicted and measured costs, by rank; None: not predicted
    seconds: float  # of this round


class Recorded(msgspec.Struct, frozen=True, tag_field="event", tag="record"):
    """A choice beat the default by more than the noise, and is in the store."""

    task: str
    choice: Choice
    microseconds: float
    default_microseconds: float
    noise: float


class Noted(msgspec.Struct, frozen=True, tag_field="event", tag="note"):
    """Something that did not go as it should, and how tuning goes on."""

    text: str


Event = Planned | Progressed | Rounded | Recorded | Noted
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """A listener that says nothing."""
