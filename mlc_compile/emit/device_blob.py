"""The blob in a TVM library: the modules that its host code imports, device code among them.

TVM writes it for the backends that it compiles; we read it, change or add the module whose
code we compiled ourselves, and write it back. So a library is the same whether or not the
machine that builds it has the device's driver.

Layout of TVM 0.27, little-endian; `vec` is a u64 count and the items, `str` a vec of bytes:

    blob      u64 size of the rest, vec<u64> row, vec<u64> child, then each module:
              str kind, and str payload unless the kind is "_lib", the library's own code
    tree      module i imports child[row[i]:row[i + 1]]; module 0 is what gets loaded
    kernels   vec of: str key, str name, vec<{u8 code, u8 bits, u16 lanes}> argument types,
              vec<str> launch parameters, vec<i32> extra tags of arguments
    cuda      str format, kernels, str code
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol, TypeVar

import tvm
from tvm.runtime import Module

LAYOUT: Final = "TVM 0.27"  # whose writer the tests compare with
OWN_CODE: Final = "_lib"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One module of a blob; no payload: the library's own code."""

    kind: str
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Blob:
    """The modules of a library and, for each, the indices of those that it imports."""

    entries: tuple[Entry, ...]
    imports: tuple[tuple[int, ...], ...]

    def map_payloads(self, kind: str, change: Callable[[bytes], bytes]) -> "Blob":
        """This blob with every payload of `kind` changed."""
        entries = tuple(
            replace(e, payload=change(e.payload)) if e.kind == kind and e.payload is not None else e
            for e in self.entries
        )
        return replace(self, entries=entries)

    def with_import(self, entry: Entry) -> "Blob":
        """This blob with one more module, imported by the library's own code."""
        new = len(self.entries)
        imports = (
            (*row, new) if e.kind == OWN_CODE else row
            for e, row in zip(self.entries, self.imports, strict=True)
        )
        return Blob((*self.entries, entry), (*imports, ()))


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """How the host calls a kernel: `types` are DLPack's (code, bits, lanes), a handle (3, 64, 1).

    `launch` names what the trailing arguments of a call are, such as "blockIdx.x".
    """

    key: str
    name: str
    types: tuple[tuple[int, int, int], ...]
    launch: tuple[str, ...]
    extra: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaCode:
    """A payload of kind "cuda": `format` is "cuda" (source), "ptx", or "cubin" (fatbins too)."""

    format: str
    kernels: tuple[KernelEntry, ...]
    code: bytes


def read_blob(data: bytes) -> Blob:
    """The blob in `data`."""
    reader = _Reader(data)
    assert reader.u64() == len(data) - 8, f"not a blob of {LAYOUT}"
    rows = reader.vector(reader.u64)
    children = reader.vector(reader.u64)
    imports = tuple(children[a:b] for a, b in pairwise(rows))
    entries = tuple(_read_entry(reader) for _ in imports)
    reader.end()
    return Blob(entries, imports)


def write_blob(blob: Blob) -> bytes:
    """The bytes of a blob."""
    rows = [0]
    for row in blob.imports:
        rows.append(rows[-1] + len(row))
    children = [child for row in blob.imports for child in row]
    body = vector(rows, u64) + vector(children, u64)
    for entry in blob.entries:
        body += string(entry.kind) + (b"" if entry.payload is None else string(entry.payload))
    return u64(len(body)) + body


def read_cuda(payload: bytes) -> CudaCode:
    """A payload of kind "cuda"."""
    reader = _Reader(payload)
    code = CudaCode(
        reader.string().decode(),
        reader.vector(lambda: _read_kernel(reader)),
        reader.string(),
    )
    reader.end()
    return code


def write_cuda(code: CudaCode) -> bytes:
    """The bytes of a payload of kind "cuda"."""
    return string(code.format) + write_kernels(code.kernels) + string(code.code)


def write_kernels(kernels: Sequence[KernelEntry]) -> bytes:
    """The table by which a device module finds its kernels."""
    return vector(kernels, _write_kernel)


def string(text: str | bytes) -> bytes:
    """A length and the bytes."""
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data)) + data


def vector(items: Sequence[T], write: Callable[[T], bytes]) -> bytes:
    """A count and the items."""
    return u64(len(items)) + b"".join(map(write, items))


def u64(value: int) -> bytes:
    """A size or an index."""
    return struct.pack("<Q", value)


class Packer(Protocol):
    """`fpack_imports` of export_library: writes the object file that holds the blob."""

    def __call__(self, mod: Module, is_system_lib: bool, prefix: str, workspace: str) -> str:
        """Write what `mod` imports into the directory `workspace`; returns the file's path."""
        ...


def packer(change: Callable[[Blob], Blob], host: "tvm.target.Target") -> Packer:
    """A packer that writes TVM's own blob after `change`, in an object file for `host`."""

    def pack(mod: Module, is_system_lib: bool, prefix: str, workspace: str) -> str:
        written = tvm.get_global_func("runtime.ModulePackImportsToTensor")(mod).numpy().tobytes()
        blob = write_blob(change(read_blob(written)))
        make = tvm.get_global_func("codegen.codegen_blob")
        path = Path(workspace) / f"{prefix}devc.o"
        make(blob, is_system_lib, str(host), prefix).write_to_file(str(path))
        return str(path)

    return pack


class _Reader:
    """Reads one value after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def u64(self) -> int:
        return self.unpack("<Q")[0]

    def string(self) -> bytes:
        size = self.u64()
        self._at += size
        return self._data[self._at - size : self._at]

    def vector(self, read: Callable[[], T]) -> tuple[T, ...]:
        return tuple(read() for _ in range(self.u64()))

    def end(self) -> None:
        assert self._at == len(self._data), f"not the layout of {LAYOUT}: bytes are left"


def _read_entry(reader: _Reader) -> Entry:
    kind = reader.string().decode()
    return Entry(kind, None if kind == OWN_CODE else reader.string())


def _read_kernel(reader: _Reader) -> KernelEntry:
    def one_type() -> tuple[int, int, int]:
        code, bits, lanes = reader.unpack("<BBH")
        return code, bits, lanes

    return KernelEntry(
        key=reader.string().decode(),
        name=reader.string().decode(),
        types=reader.vector(one_type),
        launch=reader.vector(lambda: reader.string().decode()),
        extra=reader.vector(lambda: reader.unpack("<i")[0]),
    )


def _write_kernel(kernel: KernelEntry) -> bytes:
    return (
        string(kernel.key)
        + string(kernel.name)
        + vector(kernel.types, lambda t: struct.pack("<BBH", *t))
        + vector(kernel.launch, string)
        + vector(kernel.extra, lambda tag: struct.pack("<i", tag))
    )
