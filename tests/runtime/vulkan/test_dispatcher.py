"""Launches: arguments reach a shader by either way, and each launch sees those before it."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from mlc_compile.runtime.vulkan import machine as machines
from mlc_compile.runtime.vulkan.dispatcher import Dispatcher
from mlc_compile.runtime.vulkan.failure import VulkanFailure
from mlc_compile.runtime.vulkan.loader import Gpu
from mlc_compile.runtime.vulkan.machine import Machine
from mlc_compile.runtime.vulkan.pipelines import capabilities

pytestmark = pytest.mark.vulkan

Assemble = Callable[[int, bool], bytes]


@pytest.mark.parametrize(
    ("numbers", "uniform"), [(1, False), (16, False), (1, True), (17, True), (100, True)]
)
def test_numbers_reach_the_shader(
    machine: Machine, assemble: Assemble, numbers: int, uniform: bool
) -> None:
    x = np.arange(5, dtype=np.int32)
    y = np.zeros_like(x)
    given = [np.int32(-1)] * (numbers - 1) + [np.int32(1000)]
    code = assemble(numbers, uniform)
    Dispatcher(machine).run(code, "add", [x, y], given, (5, 1, 1), uniform)
    np.testing.assert_array_equal(y, x + 1000)
    np.testing.assert_array_equal(x, np.arange(5))


def test_the_grid_is_what_was_asked(machine: Machine, assemble: Assemble) -> None:
    x, y = np.arange(300, dtype=np.int32), np.zeros(300, np.int32)
    Dispatcher(machine).run(assemble(1, False), "add", [x, y], [np.int32(1)], (200, 1, 1))
    np.testing.assert_array_equal(y[:200], x[:200] + 1)
    assert not y[200:].any()


@pytest.mark.parametrize("uniform", [False, True])
def test_a_long_chain_of_launches_runs_in_order(
    machine: Machine, assemble: Assemble, uniform: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the command buffers hold, and more blocks of numbers than there is room for."""
    monkeypatch.setattr(machines, "UNIFORMS", 4096)
    fresh = Machine(machine.gpu)
    pipeline = fresh.pipelines.create(assemble(2, uniform), "add", 2, 2, uniform)
    x = np.zeros(64, np.int32)
    pair = [fresh.allocate(x.nbytes) for _ in "ab"]
    for handle in pair:
        fresh.write(handle, 0, x.ctypes.data, x.nbytes)
    steps = 1001
    for step in range(steps):
        numbers = np.array([0, step], np.int64)  # each 8 bytes
        given = fresh.gpu.vk.ffi.from_buffer(numbers)
        fresh.launch(pipeline, (pair[step % 2], pair[1 - step % 2]), given, (64, 1, 1))
    fresh.read(pair[steps % 2], 0, x.ctypes.data, x.nbytes)
    np.testing.assert_array_equal(x, steps * (steps - 1) // 2)


def test_no_sets_pile_up_for_buffers_that_are_gone(machine: Machine, assemble: Assemble) -> None:
    fresh = Machine(machine.gpu)
    pipeline = fresh.pipelines.create(assemble(1, False), "add", 2, 1, False)
    given = fresh.gpu.vk.ffi.new("char[8]")
    large = 2 << 20  # freed, it is not kept for the next
    for _ in range(600):  # more than a pool has
        pair = (fresh.allocate(large), fresh.allocate(large))
        fresh.launch(pipeline, pair, given, (1, 1, 1))
        for handle in pair:
            fresh.free(handle)
        fresh.wait()
    assert fresh.pipelines.sets == 0


def test_a_grid_beyond_the_device_is_refused(machine: Machine, assemble: Assemble) -> None:
    x, y = np.zeros(1, np.int32), np.zeros(1, np.int32)
    most = machine.gpu.limits.grid[0]
    with pytest.raises(VulkanFailure, match=f"{most + 1} blocks"):
        Dispatcher(machine).run(assemble(1, False), "add", [x, y], [np.int32(1)], (most + 1, 1, 1))


def test_a_buffer_of_which_a_kernel_would_see_a_part_is_refused(
    gpu: Gpu, assemble: Assemble
) -> None:
    limits = dataclasses.replace(gpu.limits, binding_bytes=1 << 16)
    small = Machine(dataclasses.replace(gpu, limits=limits))
    x, y = np.zeros(1 << 15, np.int32), np.zeros(4, np.int32)
    with pytest.raises(VulkanFailure, match="takes a buffer of 131,072 bytes"):
        Dispatcher(small).run(assemble(1, False), "add", [x, y], [np.int32(1)])


def test_what_a_shader_needs_is_read_from_it(assemble: Assemble) -> None:
    assert capabilities(assemble(1, False)) == ()
    header = np.frombuffer(assemble(1, False)[:20], np.uint32)
    declared = [2 << 16 | 17, 9, 2 << 16 | 17, 4448, 2 << 16 | 17, 1]
    code = np.concatenate([header, np.array(declared, np.uint32)]).tobytes()
    assert capabilities(code) == ("Float16", "StorageBuffer8BitAccess")
