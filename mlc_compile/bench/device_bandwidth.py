"""How fast a device copies its own memory: the roof of decoding on it."""

from time import perf_counter
from typing import Final

from mlc_compile.runtime.device import open_device
from mlc_compile.target import Backend

BUFFER: Final = 512 << 20  # bytes; far more than any cache of a GPU
REPEATS: Final = 8


def copy_bandwidth(backend: Backend, nbytes: int = BUFFER, repeats: int = REPEATS) -> float:
    """Bytes a second, what is read and what is written both counted; the best of `repeats`.

    TVM must have been started. Raises TargetError if this machine has no such device.
    """
    import tvm

    device = open_device(backend)
    source, sink = (tvm.runtime.empty((nbytes,), "uint8", device) for _ in range(2))
    fastest = float("inf")
    for _ in range(repeats + 1):  # the first maps the memory, and is never the fastest
        start = perf_counter()
        source.copyto(sink)
        device.sync()
        fastest = min(fastest, perf_counter() - start)
    return 2 * nbytes / fastest
