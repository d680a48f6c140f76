"""TVM's tensors on a Vulkan device, through the object that we make for its runtime."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_compile.runtime.vulkan.device_api import SLOTS
from mlc_compile.runtime.vulkan.failure import VulkanFailure, raise_kept
from mlc_compile.runtime.vulkan.machine import Machine

pytestmark = pytest.mark.vulkan

VIRTUAL = re.compile(r"virtual\s+[^;{]*?(~?\w+)\s*\(")
# Our methods are named by what they do; these do nothing, whatever their name in TVM.
NAMES = {
    "get_attribute": "GetAttr",
    "data_size": "GetDataSize",
    "allocate": "AllocDataSpace",
    "allocate_shaped": "AllocDataSpace",
    "free": ("FreeDataSpace", "FreeWorkspace"),
    "copy": "CopyDataFromTo",
    "synchronize": "StreamSync",
    "allocate_workspace": "AllocWorkspace",
    "no_pointers": "SupportsDevicePointerArithmeticsOnHost",
}


@pytest.fixture
def device(installed_machine: Machine) -> Any:
    import tvm

    raise_kept()
    return tvm.device("vulkan", 0)


@pytest.fixture
def tensor(device: Any) -> Any:
    """`tensor(array)`: a copy on the device."""
    import tvm

    return lambda array: tvm.runtime.tensor(array, device)


def test_the_table_has_the_functions_that_the_header_declares_in_its_order() -> None:
    package = importlib.util.find_spec("tvm")  # without importing it
    assert package is not None
    assert package.origin is not None
    header = Path(package.origin).parent / "include" / "tvm" / "runtime" / "device_api.h"
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
    body = text[text.index("class TVM_RUNTIME_DLL DeviceAPI") :]
    declared = VIRTUAL.findall(body[: body.index("\n};")])
    assert declared[0] == "~DeviceAPI"
    expected = ["~DeviceAPI", *declared]  # a destructor takes two places
    assert len(SLOTS) == len(expected)
    for (ours, _, _), theirs in zip(SLOTS, expected, strict=True):
        assert ours == "nothing" or theirs in NAMES[ours], (ours, theirs)


def test_the_device_tells_of_itself(device: Any, installed_machine: Machine) -> None:
    gpu = installed_machine.gpu
    assert device.exist
    assert device.device_name == gpu.name
    assert device.max_threads_per_block == gpu.limits.threads
    assert device.warp_size == gpu.limits.subgroup
    assert device.total_global_memory == gpu.limits.memory_bytes
    assert device.compute_version is None  # Vulkan has none


def test_there_is_one_device(device: Any) -> None:
    import tvm

    assert not tvm.device("vulkan", 1).exist


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (1000, 7)])
def test_tensors_come_back(tensor: Any, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    np.testing.assert_array_equal(tensor(array).numpy(), array)


def test_tensors_are_copied_on_the_device(tensor: Any, device: Any) -> None:
    array = np.arange(77, dtype=np.float32)
    first = tensor(array)
    second = first.copyto(device)
    first.copyfrom(np.zeros_like(array))
    np.testing.assert_array_equal(second.numpy(), array)


def test_a_view_is_read_and_written_at_its_offset(tensor: Any) -> None:
    whole = tensor(np.arange(12, dtype=np.int32))
    part = whole._create_view((2, 2), "int32", 5 * 4)
    np.testing.assert_array_equal(part.numpy(), [[5, 6], [7, 8]])
    part.copyfrom(np.full((2, 2), -1, np.int32))
    np.testing.assert_array_equal(whole.numpy(), [0, 1, 2, 3, 4, -1, -1, -1, -1, 9, 10, 11])


def test_streams_can_be_made_and_waited_for(device: Any) -> None:
    stream = device.create_raw_stream()
    device.set_raw_stream(stream)
    device.sync(stream)
    device.free_raw_stream(stream)


def test_too_large_a_tensor_is_one_clear_error(device: Any) -> None:
    import tvm

    lost = tvm.runtime.empty((1 << 50,), "uint8", device)  # C++ stands between: no error yet
    lost.copyto(device)  # fails too, for no other reason
    with pytest.raises(VulkanFailure, match="no room for a buffer of 1125899906842624 bytes"):
        raise_kept()
    raise_kept()  # told once


def test_a_failed_copy_is_told(device: Any, tensor: Any) -> None:
    import tvm

    lost = tvm.runtime.empty((1 << 50,), "uint8", device)
    with pytest.raises(VulkanFailure, match="no room"):
        raise_kept()
    lost.copyto(lost)
    with pytest.raises(VulkanFailure, match="is no buffer"):
        raise_kept()


def test_an_unknown_memory_scope_is_refused(device: Any) -> None:
    import tvm

    tvm.runtime.empty((4,), "uint8", device, mem_scope="global")
    raise_kept()
    tvm.runtime.empty((4,), "uint8", device, mem_scope="texture")
    with pytest.raises(VulkanFailure, match="'texture'"):
        raise_kept()
