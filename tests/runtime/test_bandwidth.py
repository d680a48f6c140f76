"""The roof of the roofline."""

import psutil
import pytest

from mlc_compile.runtime.bandwidth import read_bandwidth


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bandwidth_is_of_a_plausible_size(threads: int) -> None:
    measured = read_bandwidth(threads, nbytes=64 << 20, repeats=2)
    assert 2e8 < measured < 1e13  # a busy single-board computer .. beyond any memory's


def test_every_byte_is_read() -> None:
    small, large = (min(_seconds(n) for _ in range(3)) for n in (16 << 20, 128 << 20))
    assert large > 3 * small  # eight times as many bytes


def _seconds(nbytes: int) -> float:
    return nbytes / read_bandwidth(1, nbytes=nbytes, repeats=3)


def test_memory_is_given_back() -> None:
    process = psutil.Process()
    read_bandwidth(1, nbytes=32 << 20, repeats=1)
    before = process.memory_info().rss
    for _ in range(4):
        read_bandwidth(1, nbytes=32 << 20, repeats=1)
    assert process.memory_info().rss - before < 16 << 20  # four kept buffers are 128 MiB
