"""Who may look on while the pipeline runs: at the module as imported, then after each pass."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tvm import IRModule


@dataclass(frozen=True, slots=True)
class At:
    """A place in the pipeline: phases and passes count from 1."""

    phase: str
    phase_number: int
    step: str  # the pass that has just run
    step_number: int
    ends_phase: bool


class Watcher(Protocol):
    """Sees the module at the start and after each pass; it must not change it."""

    def start(self, mod: "IRModule") -> None:
        """See the module as imported."""

    def after(self, at: At, mod: "IRModule") -> None:
        """See the module that a pass left."""
