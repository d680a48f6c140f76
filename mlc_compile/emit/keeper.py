"""Who keeps compiled kernels between builds; knows no TVM.

    with kept_by(keeper):
        emit(mod, target, linker, out)

What is emitted is the same with any keeper and with none; only the time differs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KernelSource:
    """All that an object file depends on beside TVM itself, as text."""

    name: str
    function: str  # sha256 of TVM's JSON of the PrimFunc
    target: str
    settings: str  # of the pass context


class Keeper(Protocol):
    """Remembers object files."""

    def take(self, kernel: KernelSource, make: Callable[[], bytes]) -> bytes:
        """The object of `kernel`: one that was kept, else what `make` gives."""
        ...


_KEEPER: ContextVar[Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def kept_by(keeper: Keeper) -> Iterator[None]:
    """Ask `keeper` for every kernel that is emitted in this block."""
    token = _KEEPER.set(keeper)
    try:
        yield
    finally:
        _KEEPER.reset(token)


def take(kernel: KernelSource, make: Callable[[], bytes]) -> bytes:
    """The object of `kernel` from whoever keeps such; made where nobody does."""
    keeper = _KEEPER.get()
    return make() if keeper is None else keeper.take(kernel, make)
