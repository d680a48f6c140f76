"""TVM's device interface for Vulkan: an object of its C++ class DeviceAPI, made from Python.

TVM asks a global function for the address of such an object and calls its virtual functions.
The object here is a pointer to a table of them, laid out as the Itanium C++ ABI says (all
compilers on Linux and macOS): first the two destructors, then the functions in the order in
which tvm/runtime/device_api.h declares them. A device or a type is passed by value in a
register; an optional string by address, since it has a destructor.

An exception must not travel through C++ from here. So a function that fails keeps its error and
returns, an allocation with a handle that names no buffer, and the next launch, or whoever calls
`failure.raise_kept`, raises what was kept.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

from mlc_compile.runtime.vulkan.failure import VulkanFailure, keep
from mlc_compile.runtime.vulkan.machine import Machine

HOST: Final = 1  # kDLCPU

POINTER: Final = ctypes.c_void_p
DEVICE: Final = ctypes.c_uint64  # DLDevice, by value: i32 type, i32 number
TYPE: Final = ctypes.c_uint32  # DLDataType, by value
SIZE: Final = ctypes.c_size_t

# DLTensor: data, device type and number, dimensions, type (code, bits, lanes), shape, strides,
# byte offset.
TENSOR: Final = struct.Struct("<QiiiBBHQQQ")
NONE, INT, SMALL_STRING = 0, 1, 11  # type indices of TVMFFIAny
ANY: Final = struct.Struct("<iIq")  # TVMFFIAny: type index, length of a small string, value
GLOBAL: Final = (b"", b"global")  # the only memory scopes
NO_BUFFER: Final = 1  # a handle; null would be refused by the host's code, with another sentence


class DeviceApi:
    """The object; `address` is what TVM asks for. It must outlive the process's last tensor."""

    def __init__(self, machine: Machine, strings: Callable[[str, int], None]) -> None:
        """`strings(text, address)` writes a text to a TVMFFIAny."""
        self._machine = machine
        self._strings = strings
        self._closed = False
        self._functions = list(map(self._slot, SLOTS))
        addresses = [ctypes.cast(f, POINTER).value for f in self._functions]
        # Before the first function: the offset to the whole object, and its type, which only
        # a dynamic_cast would look at.
        self._table = (POINTER * (len(addresses) + 2))(None, None, *addresses)
        first = ctypes.addressof(self._table) + 2 * ctypes.sizeof(POINTER)
        self._object = (POINTER * 1)(first)

    @property
    def address(self) -> int:
        """Of the C++ object."""
        return ctypes.addressof(self._object)

    def close(self) -> None:
        """End the device's work; what TVM still frees as the process ends is let be."""
        self._closed = True
        self._machine.queue.abandon()

    def _slot(self, slot: tuple[str, Any, tuple[Any, ...]]) -> Any:
        name, result, arguments = slot
        method = getattr(self, name)

        def call(_this: int, *given: Any) -> Any:
            try:
                return method(*given)
            except BaseException as e:  # noqa: BLE001 (nothing may be raised into C++)
                keep(e)
                return None if result is None else NO_BUFFER

        return ctypes.CFUNCTYPE(result, POINTER, *arguments)(call)

    def nothing(self, *_given: Any) -> int:
        """Streams are one queue, in the program's order, and nobody destroys this object."""
        return 0

    def get_attribute(self, device: int, kind: int, result: int) -> None:
        """Write an attribute to a TVMFFIAny, or leave it None."""
        number = device >> 32
        if kind == EXISTS:
            value: int | str | None = int(number == 0)
        else:
            read = ATTRIBUTES.get(kind)
            value = None if read is None else read(self._machine)
        if isinstance(value, str):
            self._strings(value, result)
        elif value is not None:
            ctypes.memmove(result, ANY.pack(INT, 0, value), ANY.size)

    def data_size(self, tensor: int, scope: int) -> int:
        """Bytes that a tensor takes."""
        _require_global(scope)
        return _Tensor(tensor).nbytes

    def allocate(self, _device: int, nbytes: int, _alignment: int, _type: int) -> int:
        """The handle of a new buffer."""
        return self._machine.allocate(nbytes)

    def allocate_shaped(
        self, _device: int, dimensions: int, shape: int | None, dtype: int, scope: int
    ) -> int:
        """The same for a shape."""
        _require_global(scope)
        bits, lanes = dtype >> 8 & 0xFF, dtype >> 16
        return self._machine.allocate(_nbytes(_shape(shape, dimensions), bits * lanes))

    def allocate_workspace(self, _device: int, nbytes: int, _type: int) -> int:
        """The same for a short while."""
        return self._machine.allocate(nbytes)

    def free(self, _device: int, handle: int | None) -> None:
        """Forget a buffer; null is none."""
        if handle is not None and not self._closed:
            self._machine.free(handle)

    def copy(self, source: int, to: int, _stream: int | None) -> None:
        """Between two tensors, either of them on the host."""
        a, b = _Tensor(source), _Tensor(to)
        if a.nbytes != b.nbytes or not (a.contiguous and b.contiguous):
            raise VulkanFailure("only whole tensors of one size can be copied", hint="")
        if a.device == HOST:
            self._machine.write(b.data, b.offset, a.data + a.offset, a.nbytes)
        elif b.device == HOST:
            self._machine.read(a.data, a.offset, b.data + b.offset, a.nbytes)
        else:
            self._machine.copy(a.data, a.offset, b.data, b.offset, a.nbytes)

    def synchronize(self, _device: int, _stream: int | None) -> None:
        """Wait for kernels and copies on the device; what went to it was taken at once."""
        self._machine.finish()

    def no_pointers(self) -> bool:
        """Whether a handle is an address that the host may add to."""
        return False


# The virtual functions after `this`, in the header's order: method, result, arguments.
SLOTS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("nothing", None, ()),  # the destructor of the object
    ("nothing", None, ()),  # and the one that frees its memory too
    ("nothing", None, (DEVICE,)),  # SetDevice
    ("get_attribute", None, (DEVICE, ctypes.c_int, POINTER)),  # GetAttr
    ("data_size", SIZE, (POINTER, POINTER)),  # GetDataSize
    ("nothing", None, (DEVICE, POINTER, POINTER)),  # GetTargetProperty
    ("allocate", POINTER, (DEVICE, SIZE, SIZE, TYPE)),  # AllocDataSpace
    ("allocate_shaped", POINTER, (DEVICE, ctypes.c_int, POINTER, TYPE, POINTER)),  # AllocDataSpace
    ("free", None, (DEVICE, POINTER)),  # FreeDataSpace
    ("copy", None, (POINTER, POINTER, POINTER)),  # CopyDataFromTo
    ("nothing", POINTER, (DEVICE,)),  # CreateStream
    ("nothing", None, (DEVICE, POINTER)),  # FreeStream
    ("synchronize", None, (DEVICE, POINTER)),  # StreamSync
    ("nothing", None, (DEVICE, POINTER)),  # SetStream
    ("nothing", POINTER, (DEVICE,)),  # GetCurrentStream
    ("nothing", None, (DEVICE, POINTER, POINTER)),  # SyncStreamFromTo
    ("allocate_workspace", POINTER, (DEVICE, SIZE, TYPE)),  # AllocWorkspace
    ("free", None, (DEVICE, POINTER)),  # FreeWorkspace
    ("no_pointers", ctypes.c_bool, ()),  # SupportsDevicePointerArithmeticsOnHost
    # CopyDataFromTo of parts, which only the one above would call.
    ("nothing", None, (POINTER, SIZE, POINTER, SIZE, SIZE, DEVICE, DEVICE, TYPE, POINTER)),
)

EXISTS: Final = 0  # of DeviceAttrKind: one device is there
# DeviceAttrKind -> its value; a kind that is not here is None.
ATTRIBUTES: Final[dict[int, Callable[[Machine], int | str]]] = {
    1: lambda m: m.gpu.limits.threads,  # kMaxThreadsPerBlock
    2: lambda m: m.gpu.limits.subgroup,  # kWarpSize
    3: lambda m: m.gpu.limits.shared_bytes,  # kMaxSharedMemoryPerBlock
    5: lambda m: m.gpu.name,  # kDeviceName
    11: lambda m: "{}.{}.{}".format(*m.gpu.api),  # kApiVersion
    12: lambda m: m.gpu.driver,  # kDriverVersion
    14: lambda m: m.gpu.limits.memory_bytes,  # kTotalGlobalMemory
}


class _Tensor:
    """A DLTensor at an address."""

    __slots__ = ("contiguous", "data", "device", "nbytes", "offset")

    def __init__(self, address: int) -> None:
        raw = TENSOR.unpack(ctypes.string_at(address, TENSOR.size))
        data, device, _number, dimensions, _code, bits, lanes, shape, strides, offset = raw
        self.data, self.device, self.offset = data, device, offset
        extents = _shape(shape, dimensions)
        self.nbytes = _nbytes(extents, bits * lanes)
        self.contiguous = strides == 0 or _compact(extents, _shape(strides, dimensions))


def _shape(address: int | None, dimensions: int) -> tuple[int, ...]:
    if not address or dimensions == 0:
        return ()
    return struct.unpack(f"<{dimensions}q", ctypes.string_at(address, 8 * dimensions))


def _nbytes(shape: tuple[int, ...], bits: int) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return -(-count * bits // 8)


def _compact(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _require_global(scope: int) -> None:
    """`scope` is the address of an optional string, which is a TVMFFIAny."""
    kind, length, value = ANY.unpack(ctypes.string_at(scope, ANY.size))
    if kind == NONE:
        return
    text = struct.pack("<q", value)[:length] if kind == SMALL_STRING else b"(longer)"
    if text not in GLOBAL:
        raise VulkanFailure(f"memory of scope {text.decode()!r} cannot be had", hint="")
