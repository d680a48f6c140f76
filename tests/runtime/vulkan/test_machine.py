"""Buffers and copies: every byte arrives, in the order of the program."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlc_compile.runtime.vulkan import transfers
from mlc_compile.runtime.vulkan.buffers import memory_type, wishes_for
from mlc_compile.runtime.vulkan.failure import VulkanFailure
from mlc_compile.runtime.vulkan.machine import Machine
from mlc_compile.runtime.vulkan.transfers import address_of

pytestmark = pytest.mark.vulkan

Bytes = npt.NDArray[np.uint8]
SIZES = [0, 1, 3, 4, 255, 256, 257, 65536, 65537, 1_000_003]


def random_bytes(n: int) -> Bytes:
    return np.random.default_rng(n).integers(0, 256, n, np.uint8)


def put(machine: Machine, data: npt.NDArray[Any]) -> int:
    handle = machine.allocate(data.nbytes)
    machine.write(handle, 0, address_of(data), data.nbytes)
    return handle


def get(machine: Machine, handle: int, n: int, offset: int = 0) -> Bytes:
    found = np.empty(n, np.uint8)
    machine.read(handle, offset, address_of(found), n)
    return found


@pytest.mark.parametrize("n", SIZES)
def test_bytes_come_back(machine: Machine, n: int) -> None:
    data = random_bytes(n)
    handle = put(machine, data)
    np.testing.assert_array_equal(get(machine, handle, n), data)
    machine.free(handle)


@pytest.mark.parametrize("n", SIZES)
def test_bytes_go_from_buffer_to_buffer(machine: Machine, n: int) -> None:
    data = random_bytes(n)
    source, to = put(machine, data), machine.allocate(n)
    machine.copy(source, 0, to, 0, n)
    np.testing.assert_array_equal(get(machine, to, n), data)


@pytest.mark.parametrize(("offset", "n"), [(0, 4), (1, 1), (3, 5), (100, 156), (4, 96)])
def test_a_part_leaves_the_rest(machine: Machine, offset: int, n: int) -> None:
    data, part = random_bytes(256), random_bytes(n)
    handle = put(machine, data)
    machine.write(handle, offset, address_of(part), n)
    data[offset : offset + n] = part
    np.testing.assert_array_equal(get(machine, handle, 256), data)
    np.testing.assert_array_equal(get(machine, handle, n, offset), part)


@pytest.mark.parametrize("n", [7, 64, 100_000])
def test_a_write_does_not_overtake_a_copy_before_it(machine: Machine, n: int) -> None:
    first, second = random_bytes(n), random_bytes(n) ^ 0xFF
    source, to = put(machine, first), machine.allocate(n)
    machine.copy(source, 0, to, 0, n)
    machine.write(source, 0, address_of(second), n)
    np.testing.assert_array_equal(get(machine, to, n), first)
    np.testing.assert_array_equal(get(machine, source, n), second)


def test_the_host_may_change_what_it_wrote(machine: Machine) -> None:
    data = np.arange(1000, dtype=np.uint8)
    source = put(machine, data)
    to = machine.allocate(1000)
    machine.copy(source, 0, to, 0, 1000)
    data[:] = 0
    np.testing.assert_array_equal(get(machine, to, 1000), np.arange(1000, dtype=np.uint8))


@pytest.mark.parametrize(
    ("kind", "types", "small", "large"),
    [
        pytest.param("integrated", (1, 7, 15), 2, 1, id="cached and not"),
        pytest.param("integrated", (1, 15), 1, 1, id="cached alone"),
        pytest.param("integrated", (1, 7), 1, 1, id="not cached alone"),
        pytest.param("integrated", (6, 14, 1), 2, 2, id="none that both see"),
        pytest.param("discrete", (6, 14, 1, 7), 2, 2, id="discrete"),
    ],
)
def test_what_the_host_reads_back_is_cached_and_what_the_gpu_streams_is_not(
    kind: str, types: tuple[int, ...], small: int, large: int
) -> None:
    """1: local, 2: visible, 4: coherent, 8: cached."""
    logits, weights = 151_936 * 4, 1 << 24
    found = [memory_type(types, 0xFF, wishes_for(kind, nbytes)) for nbytes in (logits, weights)]
    assert found == [small, large]


def test_more_than_the_staging_buffer_arrives(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STAGING", 4096)
    monkeypatch.setattr(transfers, "INLINE", 16)
    fresh = Machine(machine.gpu)
    data = [random_bytes(n) for n in (10_001, 4096, 4095, 20_000)]
    handles = [put(fresh, one) for one in data]
    for handle, one in zip(handles, data, strict=True):
        np.testing.assert_array_equal(get(fresh, handle, one.size), one)


def test_a_freed_buffer_is_used_again_only_in_order(machine: Machine) -> None:
    """The copy from the freed buffer was asked for first, so it sees the first bytes."""
    first, second = random_bytes(512), random_bytes(512) ^ 0xFF
    to = machine.allocate(512)
    source = put(machine, first)
    machine.copy(source, 0, to, 0, 512)
    machine.free(source)
    again = put(machine, second)
    np.testing.assert_array_equal(get(machine, to, 512), first)
    np.testing.assert_array_equal(get(machine, again, 512), second)


def test_memory_of_freed_buffers_comes_back(machine: Machine) -> None:
    """Many times the device's memory, one after another."""
    each = machine.gpu.limits.memory_bytes // 8
    for _ in range(32):
        handle = machine.allocate(each)
        machine.free(handle)


def test_too_large_a_buffer_is_refused_in_a_sentence(machine: Machine) -> None:
    with pytest.raises(VulkanFailure, match="no room for a buffer of 1125899906842624 bytes"):
        machine.allocate(1 << 50)
    assert put(machine, random_bytes(16)) > 0  # and nothing else is lost


def test_no_copy_leaves_its_buffer(machine: Machine) -> None:
    handle = machine.allocate(256)
    with pytest.raises(VulkanFailure, match="byte 257 is past the end"):
        get(machine, handle, 2, offset=255)
    machine.free(handle)
    with pytest.raises(VulkanFailure, match="is no buffer"):
        get(machine, handle, 1)
