"""One safetensors file: its header checked against its size, its tensors read by memory map.

Layout: u64 header length, the header as JSON, then the data. Every byte of the data belongs
to exactly one tensor; a header that says otherwise is refused before anything is read.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mlc_compile.errors import CheckpointError

Floats = NDArray[np.float32]

LONGEST_HEADER: Final = 100_000_000  # bytes; the format's own limit
LFS_POINTER: Final = b"version https://git-lfs"

# How each type lies on disk; BF16 is the upper half of a float32.
STORED_AS: Final = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor's bytes are: `offset` counts from the start of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def read(self) -> Floats:
        """The whole tensor, widened to float32 (which is exact).

        CheckpointError where the file became shorter meanwhile.
        """
        if not self.shape:
            return self._load(0, 1).reshape(())
        return self.read_rows(0, self.shape[0])

    def read_rows(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of the first axis, as float32 in memory of their own."""
        row = math.prod(self.shape[1:])
        return self._load(start * row, stop * row).reshape(stop - start, *self.shape[1:])

    def _load(self, start: int, stop: int) -> Floats:
        if start == stop:
            return np.empty(0, np.float32)
        stored = np.dtype(STORED_AS[self.dtype])
        # A map per call: its pages leave our resident set as soon as they are widened.
        offset = self.offset + start * stored.itemsize
        raw: NDArray[Any]
        try:
            raw = np.memmap(self.path, stored, mode="r", offset=offset, shape=(stop - start,))
        except ValueError as e:  # the header agreed with the size when it was read
            raise CheckpointError(
                f"{self.path} changed while it was read: it became shorter",
                hint="leave it alone until the end, or download it again",
            ) from e
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.array(raw, np.float32)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Raises CheckpointError for a file that is cut short, is no safetensors file or whose
    header contradicts itself, and for a type other than BF16, F16 and F32.
    """
    size = path.stat().st_size
    with path.open("rb") as f:
        start = f.read(8)
        if start + f.read(len(LFS_POINTER) - 8) == LFS_POINTER:
            raise CheckpointError(
                f"{path} is a git-lfs pointer, not the weights", hint="run `git lfs pull` there"
            )
        length = int.from_bytes(start, "little")
        if len(start) < 8 or (8 + length > size and length <= LONGEST_HEADER):
            raise CheckpointError(f"{path} is truncated: it ends within its header", hint=_AGAIN)
        if length > LONGEST_HEADER:
            raise CheckpointError(f"{path} is not a safetensors file", hint=_AGAIN)
        f.seek(8)
        header = f.read(length)
    entries = _decode(header, path)
    _check_layout(entries, size - 8 - length, path)
    return {
        name: StoredTensor(path, e.dtype, e.shape, 8 + length + e.data_offsets[0])
        for name, e in entries.items()
    }


def _decode(header: bytes, path: Path) -> dict[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, RecursionError) as e:
        raise CheckpointError(f"{path} has an unreadable header: {e}", hint=_AGAIN) from e


def _check_layout(entries: dict[str, _Entry], nbytes: int, path: Path) -> None:
    """Tensors follow one another without a gap, as long as their shapes say, to the file's end."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in STORED_AS:
            raise CheckpointError(
                f"{path}: tensor {name} has type {entry.dtype}, must be {', '.join(STORED_AS)}",
                hint="give the unquantized checkpoint",
            )
        begin, end = entry.data_offsets
        needed = math.prod(entry.shape) * np.dtype(STORED_AS[entry.dtype]).itemsize
        if begin != position or end - begin != needed:
            raise CheckpointError(
                f"{path}: the header lies about {name}: bytes {begin} to {end} where "
                f"{entry.dtype} {list(entry.shape)} must take {position} to {position + needed}",
                hint=_AGAIN,
            )
        position = end
    if position > nbytes:
        raise CheckpointError(
            f"{path} is truncated: its header promises {position} bytes of data, it has {nbytes}",
            hint=_AGAIN,
        )
    if position < nbytes:
        raise CheckpointError(
            f"{path} has {nbytes - position} bytes that its header does not mention", hint=_AGAIN
        )


_AGAIN: Final = "download it again"
