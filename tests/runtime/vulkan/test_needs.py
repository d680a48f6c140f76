"""A device that is too small for a library is told so before it is loaded."""

import dataclasses

import msgspec
import pytest

from mlc_compile.artifact import DeviceNeeds
from mlc_compile.errors import TargetError
from mlc_compile.runtime.device import missing_device, open_device
from mlc_compile.runtime.vulkan import needs
from mlc_compile.runtime.vulkan.loader import Gpu
from mlc_compile.runtime.vulkan.machine import Machine

pytestmark = pytest.mark.vulkan

SMALL = DeviceNeeds(
    layout="TVM 0.27",
    capabilities=("Shader",),
    threads=64,
    local_size=(64, 1, 1),
    shared_bytes=1024,
    buffers=4,
)


def test_what_every_device_has_is_enough(gpu: Gpu) -> None:
    assert needs.shortages(SMALL, gpu) == []
    needs.require(SMALL)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("threads", 1 << 20, r"1,048,576 threads of a block \(it has "),
        ("shared_bytes", 1 << 30, "1,073,741,824 shared bytes of a block"),
        ("capabilities", ("Kernel", "Shader"), r"take: Kernel \(it has none\)$"),
        ("local_size", (1, 1, 1 << 20), "1,048,576 threads along z"),
    ],
)
def test_what_is_too_much_is_named(gpu: Gpu, field: str, value: object, told: str) -> None:
    with pytest.raises(TargetError, match=told) as caught:
        needs.require(msgspec.structs.replace(SMALL, **{field: value}))
    assert gpu.name in str(caught.value)


def test_a_kernel_of_too_many_buffers_is_named(gpu: Gpu) -> None:
    few = dataclasses.replace(gpu, limits=dataclasses.replace(gpu.limits, buffers=3))
    assert needs.shortages(SMALL, few) == ["4 buffers of a kernel (it has 3)"]


def test_the_device_of_a_too_large_library_is_missing(installed_machine: Machine) -> None:
    large = msgspec.structs.replace(SMALL, threads=1 << 20)
    assert missing_device("vulkan", SMALL) is None
    why = missing_device("vulkan", large)
    assert why is not None
    assert "1,048,576 threads" in why
    with pytest.raises(TargetError, match=r"needs a vulkan device: .* 1,048,576 threads"):
        open_device("vulkan", large)
