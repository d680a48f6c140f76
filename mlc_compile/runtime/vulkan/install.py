"""Give TVM's runtime its missing Vulkan device, once a process."""

import atexit
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, Final, Self

from mlc_compile.errors import MlcError, TargetError
from mlc_compile.runtime.vulkan.device_api import DeviceApi
from mlc_compile.runtime.vulkan.failure import keep, take_kept
from mlc_compile.runtime.vulkan.machine import the_machine
from mlc_compile.runtime.vulkan.modules import KIND, Modules
from mlc_compile.tvm_version import PINS, install_hint, installed

SYSTEMS: Final = ("linux", "darwin")  # where C++ objects are laid out as the Itanium ABI says
DEVICE: Final = "device_api.vulkan"
LOADER: Final = "ffi.Module.load_from_bytes.vulkan"


class Carried(RuntimeError):
    """Stands for the error that was kept, while TVM brings it through C++ by its name."""


class Kept(Exception):
    """What TVM makes of that name: the error that was kept, itself."""

    def __new__(cls, message: str) -> Self:
        return take_kept(message)  # type: ignore[return-value]  # so no __init__ follows


@functools.cache
def install() -> None:
    """Register the device and the loader of libraries; TVM must have been started.

    A TVM that has its own Vulkan runtime keeps it. TargetError where the package, the loader
    or a device is missing, and on a system or with a TVM whose objects we cannot imitate.
    """
    import tvm_ffi

    if tvm_ffi.get_global_func(DEVICE, allow_missing=True) is not None:
        return
    _require_layout()
    machine = the_machine()
    api = DeviceApi(machine, _writer_of_strings(tvm_ffi.LIB))
    modules = Modules(machine, tvm_ffi.LIB, tvm_ffi.get_global_func("ffi.SystemLib"))
    tvm_ffi.error.register_error(KIND, Carried)  # by its type, as Python raises it
    tvm_ffi.error.register_error(KIND, Kept)  # by its name, as Python gets it back
    tvm_ffi.register_global_func(DEVICE, lambda: ctypes.c_void_p(api.address))
    tvm_ffi.register_global_func(LOADER, _carrying(modules.load))
    atexit.register(api.close)


def _carrying(load: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def call(payload: bytes) -> Any:
        try:
            return load(payload)
        except (MlcError, KeyboardInterrupt) as e:
            keep(e)
            raise Carried(str(e)) from e

    return call


def _require_layout() -> None:
    if sys.platform not in SYSTEMS or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise TargetError(
            f"Vulkan artifacts run on 64-bit Linux and macOS, not on {sys.platform}",
            hint="build for this machine's CPU with --target cpu",
        )
    for name, pin in PINS.items():
        found = installed(name)
        if found != pin:
            raise TargetError(
                f"the Vulkan runtime is made for {name} {pin}, but {found or 'none'} is installed",
                hint=install_hint(),
            )


def _writer_of_strings(library: Any) -> Callable[[str, int], None]:
    """Writes a text to a TVMFFIAny."""

    class Bytes(ctypes.Structure):
        _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))

    def write(text: str, to: int) -> None:
        data = text.encode()
        library.TVMFFIStringFromByteArray(ctypes.byref(Bytes(data, len(data))), ctypes.c_void_p(to))

    return write
