"""A lockstep SIMT interpreter: run GPU kernels without a GPU, and catch what a GPU would hide.

    launches = run(func, a, b, out, target=target)

lowers a PrimFunc as `tvm.tirx.build` does, executes every launch on the numpy arguments in
place, and raises a `SimtError` for memory accesses that no correct kernel makes.
"""

from .errors import (
    DataRace,
    DivergentBarrier,
    DivergentShuffle,
    DivisionByZero,
    HostAssertion,
    Misaligned,
    OutOfBounds,
    SimtError,
    UninitializedRead,
    Unsupported,
)
from .grid import Launch, Launches
from .run import run

__all__ = [
    "DataRace",
    "DivergentBarrier",
    "DivergentShuffle",
    "DivisionByZero",
    "HostAssertion",
    "Launch",
    "Launches",
    "Misaligned",
    "OutOfBounds",
    "SimtError",
    "UninitializedRead",
    "Unsupported",
    "run",
]
