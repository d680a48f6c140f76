"""Where kernels of these tests run: interpreted, unless a test is somewhere else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

ULPS_OF_EXP = 2.0  # numpy's in float32, and what compilers for CPUs and CUDA promise


@dataclass(frozen=True)
class Place:
    """How kernels are run, and how far functions may be off there."""

    run: Callable[..., Sequence[object]]  # (kernel, row, *arguments) -> what its launches took
    ulps_of_exp: Callable[[np.ndarray], np.ndarray]  # (exponents) -> of float32


INTERPRETED = None
_elsewhere: ContextVar[Place | None] = ContextVar("elsewhere", default=INTERPRETED)


@contextmanager
def at(place: Place | None) -> Iterator[None]:
    """Run kernels there, whatever row they are asked for."""
    token = _elsewhere.set(place)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def elsewhere() -> Place | None:
    """Where kernels run, if they are not interpreted."""
    return _elsewhere.get()


def ulps_of_exp(x: np.ndarray) -> np.ndarray:
    """By how many units in the last place exp(x) may be off where kernels run."""
    place = elsewhere()
    return np.full_like(x, ULPS_OF_EXP) if place is INTERPRETED else place.ulps_of_exp(x)
