"""How a long job tells its story without knowing who listens.

The stages call `step` and `advance`; the command line draws them with rich, tests and
library users pass `SILENT`.
"""

from typing import Protocol


class Progress(Protocol):
    """A listener for the stages of one job."""

    def step(self, name: str, total: int | None = None) -> None:
        """A stage begins; `total` counts its units (bytes, tensors) when known."""

    def advance(self, amount: int = 1) -> None:
        """`amount` more units of the current stage are done."""


class Silent:
    """A listener that says nothing."""

    def step(self, name: str, total: int | None = None) -> None:
        """Ignore the stage."""

    def advance(self, amount: int = 1) -> None:
        """Ignore the progress."""


SILENT = Silent()
