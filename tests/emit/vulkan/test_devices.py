"""What a machine lacks for Vulkan: the first thing, with the command that brings it."""

import ctypes.util
import importlib.util
import sys

import pytest

from mlc_compile.emit.tool import Answer
from mlc_compile.emit.vulkan import devices
from mlc_compile.emit.vulkan.devices import Lack, lacking, missing
from mlc_compile.runtime.vulkan.loader import open_gpu
from mlc_compile.target import find_target

SMALL = '["Small", 256, 16384, 134217728, 8, true, false]'
LARGE = '["Large", 1024, 65536, 4294967295, 1000000, true, true]'
WITHOUT_HALVES = '["Old", 1024, 65536, 4294967295, 1000000, false, true]'
WITHOUT_BYTES = '["New", 1024, 65536, 4294967295, 1000000, true, false]'


@pytest.fixture
def machine(monkeypatch):
    """`machine(SMALL, LARGE)`: drivers report these devices; `package` and `loader` are there."""

    def has(*found, package=True, loader=True, answer=None):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: package or None)
        monkeypatch.setattr(ctypes.util, "find_library", lambda _name: loader or None)
        said = answer or Answer(0, f"[{', '.join(found)}]", "")
        monkeypatch.setattr(devices, "ask", lambda *_: said)
        devices.devices.cache_clear()

    yield has
    devices.devices.cache_clear()


def test_of_package_loader_and_driver_the_first_that_is_missing_is_named(machine):
    machine(package=False, loader=False)
    assert missing() == Lack("the Python package vulkan is not installed", devices.PACKAGE_FIX)
    machine(loader=False)
    assert missing() == Lack("there is no Vulkan loader (libvulkan)", devices.LOADER_FIX)
    machine()
    lack = missing()
    assert lack == Lack(
        "there is no Vulkan device: drivers report none with Vulkan 1.1", devices.DRIVER_FIX
    )
    machine(SMALL)
    assert missing() is None


def test_a_driver_that_crashes_is_a_reason(machine):
    machine(answer=Answer(-11, "", ""))
    assert missing().what == "there is no Vulkan device: exit code -11"
    machine(answer=Answer(1, "", "Traceback\nvulkan.VkErrorIncompatibleDriver"))
    assert missing().what.endswith("vulkan.VkErrorIncompatibleDriver")


def test_one_device_that_meets_the_row_s_limits_is_enough(machine):
    wanted = find_target("vulkan-radv").device
    machine(SMALL, LARGE)
    assert lacking(wanted) is None
    machine(SMALL)
    assert lacking(wanted) == Lack("Small allows 256 threads a block, the target 1,024")
    assert lacking(find_target("vulkan").device) is None


def test_a_device_without_what_the_row_has_is_not_enough(machine):
    machine(WITHOUT_HALVES)
    assert lacking(find_target("vulkan").device) == Lack("Old has no float16, the target has")
    machine(WITHOUT_BYTES)
    assert lacking(find_target("vulkan").device) is None
    lack = Lack("New has no 8-bit storage, the target has")
    assert lacking(find_target("vulkan-radv").device) == lack


def test_what_is_asked_without_drivers_is_asked_for_nothing_else(machine):
    machine(package=False)
    assert lacking(find_target("vulkan").device) == missing()


@pytest.mark.vulkan
def test_drivers_of_this_machine_tell_what_it_has():
    if importlib.util.find_spec("vulkan") is None:
        pytest.skip("needs the package vulkan: pip install 'mlc_compile[vulkan]'")
    if ctypes.util.find_library("vulkan") is None:
        pytest.skip("needs a driver: apt-get install libvulkan1 mesa-vulkan-drivers")
    devices.devices.cache_clear()
    found = devices.devices()
    if isinstance(found, str):
        pytest.skip(f"needs a driver: apt-get install mesa-vulkan-drivers ({found})")
    for one in found:
        assert one.name
        # What Vulkan 1.0 promises of each.
        assert one.threads >= 128
        assert one.shared_bytes >= 16384
        assert one.binding_bytes >= 1 << 27
        assert one.buffers >= 4
    opened = open_gpu()  # the runtime asks in its own way
    (seen, *_) = [one for one in found if one.name == opened.name]
    assert seen.f16 == ({"Float16", "StorageBuffer16BitAccess"} <= opened.capabilities)
    assert seen.int8 == ("StorageBuffer8BitAccess" in opened.capabilities)


@pytest.mark.skipif(sys.platform != "linux", reason="the loader takes such a variable on Linux")
def test_without_a_driver_that_loads_there_is_no_device(monkeypatch, tmp_path):
    if devices.missing() is not None:
        pytest.skip("needs a driver: apt-get install libvulkan1 mesa-vulkan-drivers")
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "none.json"))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "none.json"))
    devices.devices.cache_clear()
    lack = devices.missing()
    devices.devices.cache_clear()
    assert lack.what.startswith("there is no Vulkan device")
    assert "mesa-vulkan-drivers" in lack.fix
