"""Kernels as TVM calls them: arguments arrive, names do not collide, errors come back whole."""

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc_compile.errors import DamageError, TargetError
from mlc_compile.runtime.vulkan import modules
from mlc_compile.runtime.vulkan.failure import VulkanFailure, raise_kept
from mlc_compile.runtime.vulkan.machine import Machine
from mlc_compile.runtime.vulkan.modules import Launcher
from mlc_compile.runtime.vulkan.payload import Kernel

pytestmark = pytest.mark.vulkan

HANDLE, INT, FLOAT = (3, 64, 1), (0, 32, 1), (2, 32, 1)
Load = Callable[..., Any]


@pytest.fixture
def load(installed_machine: Machine, write_payload: Callable[..., bytes]) -> Load:
    """`load(*kernels)`: TVM's module of a payload with them."""
    import tvm_ffi

    raise_kept()
    loader = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.vulkan")
    return lambda *kernels: loader(write_payload(*kernels))


@pytest.fixture
def pair(installed_machine: Machine) -> tuple[int, int]:
    """Two buffers of eight i32: 0 to 7, and zeros."""
    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    handles = tuple(installed_machine.allocate(32) for _ in "xy")
    for handle, array in zip(handles, (x, y), strict=True):
        installed_machine.write(handle, 0, array.ctypes.data, 32)
    return handles[0], handles[1]


def result(machine: Machine, handle: int) -> list[int]:
    found = np.empty(8, np.int32)
    machine.read(handle, 0, found.ctypes.data, 32)
    return found.tolist()


def adding(code: bytes, numbers: int = 1, uniform: bool = False) -> Kernel:
    types = (HANDLE, HANDLE, *[INT] * numbers)
    return Kernel("add", types, ("blockIdx.x", "threadIdx.x"), code, uniform)


def pointers(pair: tuple[int, int]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(handle) for handle in pair]


@pytest.mark.parametrize(("numbers", "uniform"), [(1, False), (3, False), (20, True)])
def test_a_call_launches(
    load: Load, assemble: Any, pair: Any, installed_machine: Machine, numbers: int, uniform: bool
) -> None:
    add = load(adding(assemble(numbers, uniform), numbers, uniform))["add"]
    add(*pointers(pair), *range(numbers), 8, 1)
    assert result(installed_machine, pair[1]) == [i + numbers - 1 for i in range(8)]


def test_an_empty_extent_is_one(
    load: Load, assemble: Any, pair: Any, installed_machine: Machine
) -> None:
    load(adding(assemble(1, False)))["add"](*pointers(pair), 5, 0, 1)
    assert result(installed_machine, pair[1]) == [5, 0, 0, 0, 0, 0, 0, 0]


def test_equal_names_in_two_libraries_do_not_meet(
    load: Load, assemble: Any, pair: Any, installed_machine: Machine
) -> None:
    first = load(adding(assemble(1, False)))
    second = load(adding(assemble(2, False), 2))
    first["add"](*pointers(pair), 10, 8, 1)
    assert result(installed_machine, pair[1]) == [i + 10 for i in range(8)]
    second["add"](*pointers(pair), 10, 20, 8, 1)
    assert result(installed_machine, pair[1]) == [i + 20 for i in range(8)]


def test_a_failure_before_a_launch_is_raised_by_it_as_it_was(
    load: Load, assemble: Any, pair: Any, installed_machine: Machine
) -> None:
    import tvm

    add = load(adding(assemble(1, False)))["add"]
    tvm.runtime.empty((1 << 50,), "uint8", tvm.device("vulkan", 0))
    with pytest.raises(VulkanFailure, match="no room for a buffer") as caught:
        add(*pointers(pair), 1, 8, 1)
    assert "--context" in caught.value.hint
    add(*pointers(pair), 1, 8, 1)  # told once; what does not need the lost buffer goes on
    assert result(installed_machine, pair[1]) == list(range(1, 9))


def test_a_buffer_that_is_gone_is_told(
    load: Load, assemble: Any, pair: Any, installed_machine: Machine
) -> None:
    add = load(adding(assemble(1, False)))["add"]
    installed_machine.free(pair[0])
    with pytest.raises(VulkanFailure, match="add was given a buffer"):
        add(*pointers(pair), 1, 8, 1)


def test_damage_and_its_hint_come_through_tvm(load: Load) -> None:
    import tvm_ffi

    loader = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.vulkan")
    with pytest.raises(DamageError) as caught:
        loader(b"no payload")
    assert caught.value.hint == "rebuild the artifact"


def test_a_launch_that_vulkan_does_not_have_is_refused(load: Load, assemble: Any) -> None:
    strange = dataclasses.replace(adding(assemble(1, False)), launch=("clusterCtaIdx.x",))
    with pytest.raises(TargetError, match=r"add is launched with clusterCtaIdx\.x"):
        load(strange)


def test_what_the_device_lacks_is_named(
    installed_machine: Machine, assemble: Any, write_payload: Any
) -> None:
    gpu = dataclasses.replace(installed_machine.gpu, capabilities=frozenset({"Shader"}))
    code = np.frombuffer(assemble(1, False), np.uint32)
    with_half = np.concatenate([code[:5], np.array([2 << 16 | 17, 9], np.uint32), code[5:]])
    with pytest.raises(TargetError, match="lacks Float16, which kernel add needs"):
        Machine(gpu).pipelines.require(with_half.tobytes(), "add")


def test_float_arguments_are_narrowed(installed_machine: Machine, assemble: Any) -> None:
    """The shader adds the bits of a float as a whole number."""
    machine = installed_machine
    kernel = dataclasses.replace(adding(assemble(1, False)), types=(HANDLE, HANDLE, FLOAT))
    launcher = Launcher(kernel, machine, None)
    x, y = np.zeros(8, np.int32), np.zeros(8, np.int32)
    handles = [machine.allocate(32) for _ in "xy"]
    machine.write(handles[0], 0, x.ctypes.data, 32)
    anys = np.zeros((5, 2), np.int64)  # type and value of each argument
    anys[:2, 1] = handles
    anys[2, 1:].view(np.float64)[0] = 1.1
    anys[3:, 1] = 8, 1
    assert launcher.call(0, anys.ctypes.data, 5, 0) == 0
    machine.read(handles[1], 0, y.ctypes.data, 32)
    assert y[0] == np.float32(1.1).view(np.int32)


def test_an_interrupt_during_a_launch_is_one(
    load: Load,
    assemble: Any,
    pair: Any,
    installed_machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = load(adding(assemble(1, False)))["add"]

    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(installed_machine, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(*pointers(pair), 1, 8, 1)


def test_an_interrupt_while_a_library_is_loaded_is_one(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_payload: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(modules, "read_payload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load()
