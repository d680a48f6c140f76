"""MLC's container of converted tensors: `tensor-cache.json` and `params_shard_*.bin`.

The place of every tensor follows from the list of names, shapes and types alone, so that
threads may write in any order and the bytes come out the same.
"""

import hashlib
import math
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mlc_compile.artifact import TENSOR_CACHE, WeightsManifest, describe, pretty_json, read_manifest
from mlc_compile.errors import DamageError

Stored = NDArray[Any]

SHARD_BYTES: Final = 32 << 20  # a tensor that is bigger has a shard to itself
SHARD_PREFIX: Final = "params_shard_"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a shard; the field names are MLC's."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str = "raw"
    nbytes: int
    byteOffset: int


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file. MLC's downloader looks at `md5sum`; we verify the manifest's sha256."""

    dataPath: str
    format: str = "raw-shard"
    nbytes: int
    records: tuple[Record, ...]
    md5sum: str = ""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `tensor-cache.json`."""

    metadata: dict[str, float]
    records: tuple[Shard, ...]


def plan_shards(tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> tuple[Shard, ...]:
    """Place tensors (name, shape, dtype) in shards, in the order given."""
    shards: list[Shard] = []
    records: list[Record] = []
    offset = 0
    for name, shape, dtype in tensors:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if records and offset + nbytes > SHARD_BYTES:
            shards.append(_shard(len(shards), records))
            records, offset = [], 0
        records.append(
            Record(name=name, shape=shape, dtype=dtype, nbytes=nbytes, byteOffset=offset)
        )
        offset += nbytes
    if records:
        shards.append(_shard(len(shards), records))
    return tuple(shards)


def _shard(number: int, records: list[Record]) -> Shard:
    return Shard(
        dataPath=f"{SHARD_PREFIX}{number}.bin",
        nbytes=sum(r.nbytes for r in records),
        records=tuple(records),
    )


class TensorCacheWriter:
    """Fills the shards of a directory; `write` may be called from several threads at once."""

    def __init__(self, directory: Path, shards: tuple[Shard, ...]) -> None:
        self._directory = directory
        self._shards = shards
        self._places = {r.name: (directory / s.dataPath, r) for s in shards for r in s.records}
        for shard in shards:
            with (directory / shard.dataPath).open("xb") as f:
                f.truncate(shard.nbytes)

    def write(self, name: str, row: int, values: Stored) -> None:
        """Put `values` at row `row` (of the first axis) of tensor `name`."""
        path, record = self._places[name]
        assert values.dtype == record.dtype
        assert values.shape[1:] == record.shape[1:]
        # A handle per write, since a large model has more shards than a process may open.
        with path.open("r+b") as f:
            row_bytes = math.prod(record.shape[1:]) * values.itemsize
            f.seek(record.byteOffset + row * row_bytes)
            f.write(np.ascontiguousarray(values).data)

    def finish(self, parameters: int, pool: Executor) -> None:
        """Write `tensor-cache.json`; `parameters` is the model's number of weights."""
        sums = pool.map(_md5, [self._directory / shard.dataPath for shard in self._shards])
        shards = tuple(
            msgspec.structs.replace(shard, md5sum=md5)
            for shard, md5 in zip(self._shards, sums, strict=True)
        )
        nbytes = sum(shard.nbytes for shard in shards)
        metadata = {
            "ParamSize": len(self._places),
            "ParamBytes": nbytes,
            "BitsPerParam": nbytes * 8 / parameters,
        }
        index = Index(metadata=metadata, records=shards)
        (self._directory / TENSOR_CACHE).write_bytes(pretty_json(index))


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class TensorCache:
    """The tensors of a weights directory, read by memory map.

    Each file is compared with the manifest's digest before its first tensor is handed out;
    `verify=False` is for a directory still being written, which has no manifest.
    """

    def __init__(self, directory: Path, *, verify: bool = True) -> None:
        self._directory = directory
        files = read_manifest(directory, WeightsManifest).files if verify else ()
        self._digests = {file.path: file for file in files}
        self._trusted: set[str] = set()
        self._verify = verify
        self._check(TENSOR_CACHE)
        try:
            index = msgspec.json.decode((directory / TENSOR_CACHE).read_bytes(), type=Index)
        except (msgspec.DecodeError, RecursionError) as e:
            raise DamageError(f"{directory / TENSOR_CACHE}: {e}", hint=_AGAIN) from e
        self._places = {r.name: (s, r) for s in index.records for r in s.records}
        self._metadata = index.metadata

    @property
    def parameters(self) -> int:
        """The model's number of weights."""
        return round(self._metadata["ParamBytes"] * 8 / self._metadata["BitsPerParam"])

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, in file order."""
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self._places[name][1].shape

    def dtype(self, name: str) -> str:
        """The stored type: "uint32", "float16" or "float32"."""
        return self._places[name][1].dtype

    def read(self, name: str) -> Stored:
        """A whole tensor as a read-only view of its file; DamageError if the file was changed."""
        return self.read_rows(name, 0, self.shape(name)[0])

    def read_rows(self, name: str, start: int, stop: int) -> Stored:
        """Rows `start` to `stop` of the first axis, likewise."""
        shard, record = self._places[name]
        self._check(shard.dataPath)
        row_bytes = record.nbytes // record.shape[0]
        return np.memmap(
            self._directory / shard.dataPath,
            np.dtype(record.dtype),
            mode="r",
            offset=record.byteOffset + start * row_bytes,
            shape=(stop - start, *record.shape[1:]),
        )

    def _check(self, path: str) -> None:
        if not self._verify or path in self._trusted:
            return
        file = self._directory / path
        if not file.is_file() or describe(file, path) != self._digests.get(path):
            raise DamageError(f"{file} is damaged or missing", hint=_AGAIN)
        self._trusted.add(path)


_AGAIN: Final = "run `mlc-compile convert` again"
