"""What the interpreter complains about, one class each.

SimtError
├── OutOfBounds         an active thread leaves a buffer
├── UninitializedRead   a thread reads local or shared memory that nobody wrote
├── DataRace            two threads touch one element without a barrier, one of them writing
├── DivergentBarrier    a barrier (or a warp matrix) that only some threads reach
├── DivergentShuffle    a warp shuffle that reads a thread which is not there to answer
├── Misaligned          a warp matrix at an address or stride the hardware cannot take
├── DivisionByZero      an integer divided by zero
├── HostAssertion       an assertion of the host code failed
└── Unsupported         the interpreter does not know this construct, or arguments do not fit
"""


class SimtError(Exception):
    """A kernel did what it must not do."""


class OutOfBounds(SimtError):
    """An active thread accessed an element outside the buffer."""


class UninitializedRead(SimtError):
    """A thread read local or shared memory that was not written before."""


class DataRace(SimtError):
    """Two threads touched one element, nothing ordering them, at least one of them writing."""


class DivergentBarrier(SimtError):
    """A barrier that some threads of a block reach and others do not."""


class DivergentShuffle(SimtError):
    """A warp shuffle from a thread that does not take part."""


class Misaligned(SimtError):
    """A warp matrix whose address or stride is not a multiple of what the hardware wants."""


class DivisionByZero(SimtError):
    """An active thread divided an integer by zero."""


class HostAssertion(SimtError):
    """An assertion in the host code failed."""


class Unsupported(SimtError):
    """The interpreter cannot execute this function with these arguments."""
