"""How fast this machine reads memory: the roof of decoding, which reads every weight per token.

The C library's `memchr` looks through a buffer far larger than the caches for a byte that is
not there. It is vectorized everywhere and ctypes releases the interpreter's lock around it,
so threads really read in parallel, and neither numpy nor TVM is needed.
"""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final

BUFFER: Final = 512 << 20  # bytes; the largest last-level caches of servers hold less
REPEATS: Final = 4


def read_bandwidth(threads: int, nbytes: int = BUFFER, repeats: int = REPEATS) -> float:
    """Bytes a second that `threads` threads read together; the best of `repeats`.

    The best, not the median: other work on the machine only ever lowers it.
    """
    with mmap.mmap(-1, nbytes) as buffer:
        _touch(buffer)
        view = (ctypes.c_char * nbytes).from_buffer(buffer)
        try:
            return _best(ctypes.addressof(view), nbytes, threads, repeats)
        finally:
            del view  # a mapping with a view on it cannot be closed


def _touch(buffer: mmap.mmap) -> None:
    """Write every page: pages never written all map to one page of zeros, which is cached."""
    block = bytes([1]) * (1 << 20)
    for _ in range(0, len(buffer), len(block)):
        buffer.write(block[: len(buffer) - buffer.tell()])


def _best(address: int, nbytes: int, threads: int, repeats: int) -> float:
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memchr.restype = ctypes.c_void_p
    share = nbytes // threads
    fastest = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = perf_counter()
            parts = [pool.submit(memchr, address + i * share, 0, share) for i in range(threads)]
            for part in parts:
                assert part.result() is None  # there is no zero byte
            fastest = min(fastest, perf_counter() - start)
    return share * threads / fastest
