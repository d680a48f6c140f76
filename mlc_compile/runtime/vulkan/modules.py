"""A library's Vulkan kernels as a TVM module, whose functions record launches.

TVM's C interface lets a program register functions that were linked into it, as addresses by
name, and makes a module of those that share a prefix. Ours are ctypes callbacks: they get a
call's arguments as TVM lays them out, so that a launch costs no conversion. Each library has
a prefix of its own, so equal names in two do not meet; names stay registered until the process
ends, as TVM forgets none.
"""

import ctypes
import itertools
import struct
from collections.abc import Callable
from typing import Any, Final

from mlc_compile.errors import TargetError
from mlc_compile.runtime.vulkan.failure import keep, raise_kept
from mlc_compile.runtime.vulkan.machine import Machine
from mlc_compile.runtime.vulkan.payload import Kernel, read_payload
from mlc_compile.runtime.vulkan.pipelines import Pipeline

SYMBOL: Final = "__tvm_ffi_"  # before the name of every function in TVM's table
KIND: Final = "mlc_compile.vulkan"  # of an error: it is the one that was kept
# int call(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result)
CALL: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
)
HANDLE: Final = 3  # DLPack's type codes
FLOAT: Final = 2
# (code, bits) -> how a call brings an argument, and how a shader reads it, both 8 bytes.
PODS: Final[dict[tuple[int, int], tuple[str, str]]] = {
    (0, 32): ("q", "q"),  # the shader reads the lower half
    (0, 64): ("q", "q"),
    (1, 32): ("q", "q"),
    (FLOAT, 32): ("d", "f4x"),
    (FLOAT, 64): ("d", "d"),
}
AXES: Final = {f"blockIdx.{axis}": i for i, axis in enumerate("xyz")}
IGNORED: Final = tuple(f"threadIdx.{axis}" for axis in "xyz")  # the shader says it itself


class Modules:
    """Makes modules; keeps what TVM calls until the process ends."""

    def __init__(self, machine: Machine, library: Any, system_library: Callable[[str], Any]):
        """`library` is TVM's C interface, `system_library(prefix)` a module of names with it."""
        self._machine = machine
        self._library = library
        self._system_library = system_library
        self._callbacks: list[Any] = []
        self._numbers = itertools.count()

    def load(self, payload: bytes) -> Any:
        """The module of a library's payload.

        DamageError if it cannot be read, TargetError if a kernel needs what the device lacks.
        """
        kernels = read_payload(bytes(payload))
        prefix = f"mlc_compile_vulkan_{next(self._numbers)}_"
        for kernel in kernels:
            self._machine.pipelines.require(kernel.code, kernel.name)
            callback = CALL(Launcher(kernel, self._machine, self._library).call)
            self._callbacks.append(callback)
            symbol = f"{SYMBOL}{prefix}{kernel.name}".encode()
            address = ctypes.cast(callback, ctypes.c_void_p)
            self._library.TVMFFIEnvModRegisterSystemLibSymbol(symbol, address)
        return self._system_library(prefix)


class Launcher:
    """One kernel as TVM calls it: buffers, other arguments, then the extents of the launch."""

    def __init__(self, kernel: Kernel, machine: Machine, library: Any) -> None:
        self._kernel, self._machine, self._library = kernel, machine, library
        self._buffers = sum(code == HANDLE for code, _, _ in kernel.types)
        pods = [_pod(kernel, *one) for one in kernel.types[self._buffers :]]
        self._pods = len(pods)
        taken = "".join(f"8x{how}" for how, _ in pods)
        # A TVMFFIAny is its type, 8 bytes, and its value, 8 bytes.
        layout = "<" + "8xq" * self._buffers + taken + "8xq" * len(kernel.launch)
        self._arguments = struct.Struct(layout)
        self._packed = struct.Struct("<" + "".join(how for _, how in pods))
        self._axes = _axes(kernel)
        ffi = machine.gpu.vk.ffi
        self._given = ffi.new("char[]", max(self._packed.size, 1))
        self._view = ffi.buffer(self._given)
        self._pipeline: Pipeline | None = None

    def call(self, _self: int, arguments: int, count: int, _result: int) -> int:
        """Record a launch; TVM's way to say that it failed is to return -1."""
        try:
            self._launch(arguments, count)
            return 0
        except BaseException as e:  # noqa: BLE001 (nothing may be raised into C++)
            keep(e)
            message = f"{type(e).__name__}: {e}".encode()
            self._library.TVMFFIErrorSetRaisedFromCStr(KIND.encode(), message)
            return -1

    def _launch(self, arguments: int, count: int) -> None:
        raise_kept()
        layout, buffers, extents = self._arguments, self._buffers, self._buffers + self._pods
        assert count * 16 == layout.size, f"{self._kernel.name} was called with {count} arguments"
        values = layout.unpack(ctypes.string_at(arguments, layout.size))
        if self._pods:
            self._packed.pack_into(self._view, 0, *values[buffers:extents])
        grid = [1, 1, 1]
        for axis, at in self._axes:
            # A shape may be empty; the kernel's own bounds make such a launch do nothing.
            grid[axis] = values[extents + at] or 1
        if self._pipeline is None:
            self._pipeline = self._compile()
        self._machine.launch(self._pipeline, values[:buffers], self._given, grid)

    def _compile(self) -> Pipeline:
        k = self._kernel
        return self._machine.pipelines.create(
            k.code, k.name, self._buffers, self._pods, k.uniform_block
        )


def _pod(kernel: Kernel, code: int, bits: int, lanes: int) -> tuple[str, str]:
    if (code, bits) not in PODS or lanes != 1:
        raise TargetError(
            f"kernel {kernel.name} takes an argument of type {(code, bits, lanes)}, which TVM "
            "cannot pass to a Vulkan device",
            hint="rebuild the artifact",
        )
    return PODS[code, bits]


def _axes(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """(axis, place among the extents) of the launch parameters that count blocks."""
    strange = [tag for tag in kernel.launch if tag not in AXES and tag not in IGNORED]
    if strange:
        raise TargetError(
            f"kernel {kernel.name} is launched with {strange[0]}, which Vulkan does not have",
            hint="rebuild the artifact",
        )
    return tuple((AXES[tag], at) for at, tag in enumerate(kernel.launch) if tag in AXES)
