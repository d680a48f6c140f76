"""The nano checkpoint taken apart, changed and put together again."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

Tensors = dict[str, np.ndarray]  # uint16 stands for BF16
DTYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
NAMES = {"uint16": "BF16", "float16": "F16", "float32": "F32"}


class Copy:
    """A writable copy of a checkpoint; edits happen in place."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def config(self) -> Iterator[dict[str, object]]:
        """Edit config.json."""
        file = self.path / "config.json"
        raw = json.loads(file.read_text())
        yield raw
        file.write_text(json.dumps(raw))

    @contextmanager
    def tensors(self) -> Iterator[Tensors]:
        """Edit model.safetensors; BF16 appears as uint16."""
        file = self.path / "model.safetensors"
        tensors = read_tensors(file.read_bytes())
        yield tensors
        file.write_bytes(write_tensors(tensors))

    def shard(self, pieces: int) -> None:
        """Replace model.safetensors by an index and `pieces` shards."""
        file = self.path / "model.safetensors"
        tensors = read_tensors(file.read_bytes())
        file.unlink()
        weight_map = {}
        for i in range(pieces):
            name = f"model-{i + 1:05}-of-{pieces:05}.safetensors"
            part = {n: tensors[n] for n in sorted(tensors)[i::pieces]}
            (self.path / name).write_bytes(write_tensors(part))
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (self.path / "model.safetensors.index.json").write_text(json.dumps(index))


def read_tensors(data: bytes) -> Tensors:
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            data[start + e["data_offsets"][0] : start + e["data_offsets"][1]], DTYPES[e["dtype"]]
        )
        .reshape(e["shape"])
        .copy()
        for name, e in header.items()
    }


def write_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def nano(nano_checkpoint: Path, tmp_path: Path) -> Copy:
    """The nano checkpoint, to be broken."""
    path = tmp_path / "nano-qwen3"
    shutil.copytree(nano_checkpoint, path)
    return Copy(path)


@pytest.fixture
def leftovers(tmp_path: Path) -> Callable[[], list[str]]:
    """What stands in the test's directory beside the checkpoint."""
    return lambda: sorted(p.name for p in tmp_path.iterdir() if p.name != "nano-qwen3")
