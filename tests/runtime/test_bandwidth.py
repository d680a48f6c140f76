"""The roof of the roofline."""

import ctypes

import psutil
import pytest

from mlc_compile.runtime.bandwidth import read_bandwidth, readers


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bandwidth_is_of_a_plausible_size(threads: int) -> None:
    measured = read_bandwidth(threads, nbytes=64 << 20, repeats=2)
    assert 2e8 < measured < 1e13  # a busy single-board computer .. beyond any memory's


def test_every_byte_is_read() -> None:
    small, large = (min(_seconds(n) for _ in range(3)) for n in (16 << 20, 128 << 20))
    assert large > 3 * small  # eight times as many bytes


def _seconds(nbytes: int) -> float:
    return nbytes / read_bandwidth(1, nbytes=nbytes, repeats=3)


@pytest.mark.parametrize("place", [0, 2047, 2048, 4095])
def test_a_reader_looks_at_both_ends_of_its_halves(place: int) -> None:
    buffer = ctypes.create_string_buffer(b"\1" * 4096, 4096)
    for read in readers():
        assert not read(ctypes.addressof(buffer), 4096)
    buffer[place] = 0
    for read in readers():
        assert read(ctypes.addressof(buffer), 4096)


def test_memory_is_given_back() -> None:
    process = psutil.Process()
    read_bandwidth(1, nbytes=32 << 20, repeats=1)
    before = process.memory_info().rss
    for _ in range(4):
        read_bandwidth(1, nbytes=32 << 20, repeats=1)
    assert process.memory_info().rss - before < 16 << 20  # four kept buffers are 128 MiB
