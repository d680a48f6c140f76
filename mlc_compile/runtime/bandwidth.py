"""How fast this machine reads memory: the roof of decoding, which reads every weight per token.

Two functions of the C library read a buffer far larger than the caches: `memchr` looks for a
byte that is not there, `memcmp` compares two halves that are equal, so it reads in two places
at once: on Emerald Rapids that is a quarter faster, where one stream alone is the best on Zen 4.
Both are vectorized everywhere and ctypes releases the interpreter's lock around them, so threads
really read in parallel, and neither numpy nor TVM is needed. More places at once may be faster
still: Emerald Rapids likes eight.
"""

import ctypes
import itertools
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final

BUFFER: Final = 512 << 20  # bytes; the largest last-level caches of servers hold less
REPEATS: Final = 4

Reader = Callable[[int, int], int | None]  # of an address and so many bytes; false: all was read


def read_bandwidth(threads: int, nbytes: int = BUFFER, repeats: int = REPEATS) -> float:
    """Bytes a second that `threads` threads read together; the best of `repeats` of each reader.

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
    share = nbytes // threads // 2 * 2  # of a thread: two halves
    starts = [address + thread * share for thread in range(threads)]
    fastest = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _, read in itertools.product(range(repeats), readers()):
            start = perf_counter()
            parts = [pool.submit(read, place, share) for place in starts]
            for part in parts:
                assert not part.result()  # nothing is found: all of it was read
            fastest = min(fastest, perf_counter() - start)
    return share * threads / fastest


def readers() -> tuple[Reader, ...]:
    """Whatever may be the fastest."""
    return _search(), _comparison()


def _search() -> Reader:
    """`memchr` of a byte that is not there."""
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memchr.restype = ctypes.c_void_p
    return lambda address, nbytes: memchr(address, 0, nbytes)


def _comparison() -> Reader:
    """`memcmp` of two halves that are equal."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return lambda address, nbytes: memcmp(address, address + nbytes // 2, nbytes // 2)
