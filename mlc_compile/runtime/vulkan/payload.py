"""Read the payload of kind "vulkan" in a library: its kernels and their SPIR-V.

Layout of TVM 0.27, little-endian; `vec` is a u64 count and the items, `str` a vec of bytes:

    payload   str "vulkan", vec of kernels, vec of shaders
    kernel    str key, str name, vec<{u8 code, u8 bits, u16 lanes}> argument types,
              vec<str> launch parameters, vec<i32> extra tags of arguments
    shader    str key, str of: u32 flag, u64 count of words, the words
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from mlc_compile.errors import DamageError

FORMAT: Final = "vulkan"
UNIFORM_BLOCK: Final = 1  # bit of a shader's flag
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A shader and how the host calls it: `types` are DLPack's (code, bits, lanes).

    `launch` names what the trailing arguments of a call are, such as "blockIdx.x".
    """

    name: str
    types: tuple[tuple[int, int, int], ...]
    launch: tuple[str, ...]
    code: bytes
    uniform_block: bool


def read_payload(data: bytes) -> tuple[Kernel, ...]:
    """The kernels in `data`; DamageError if it has another layout."""
    reader = _Reader(data)
    try:
        written = reader.string()
        if written != FORMAT:
            raise DamageError(f"the library's kernels are {written!r}, not {FORMAT!r}", hint=AGAIN)
        calls = reader.vector(lambda: _read_call(reader))
        shaders = dict(reader.vector(lambda: (reader.string(), reader.bytes())))
        reader.end()
        return tuple(_kernel(*call, shaders[call[0]]) for call in calls)
    except (struct.error, UnicodeDecodeError, KeyError, EOFError) as e:
        raise DamageError("the library's Vulkan kernels cannot be read", hint=AGAIN) from e


AGAIN: Final = "rebuild the artifact"
Call = tuple[str, str, tuple[tuple[int, int, int], ...], tuple[str, ...]]


def _read_call(reader: "_Reader") -> Call:
    def one_type() -> tuple[int, int, int]:
        code, bits, lanes = reader.unpack("<BBH")
        return code, bits, lanes

    key, name = reader.string(), reader.string()
    types, launch = reader.vector(one_type), reader.vector(reader.string)
    reader.vector(lambda: reader.unpack("<i"))
    return key, name, types, launch


def _kernel(
    _key: str,
    name: str,
    types: tuple[tuple[int, int, int], ...],
    launch: tuple[str, ...],
    shader: bytes,
) -> Kernel:
    flag, words = struct.unpack_from("<IQ", shader)
    code = shader[struct.calcsize("<IQ") :]
    if len(code) != 4 * words:
        raise EOFError(name)
    return Kernel(name, types, launch, code, bool(flag & UNIFORM_BLOCK))


class _Reader:
    """Reads one value after another; EOFError past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def bytes(self) -> bytes:
        (size,) = self.unpack("<Q")
        if size > len(self._data) - self._at:
            raise EOFError(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def string(self) -> str:
        return self.bytes().decode()

    def vector(self, read: Callable[[], T]) -> tuple[T, ...]:
        (count,) = self.unpack("<Q")
        if count > len(self._data):
            raise EOFError(count)
        return tuple(read() for _ in range(count))

    def end(self) -> None:
        if self._at != len(self._data):
            raise EOFError(self._at)
