"""The nano checkpoint taken apart, changed and put together again; builds of it with a cache."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.artifact import PACKED_WEIGHTS, PROOF
from mlc_compile.cache import Store
from mlc_compile.driver.build import build
from mlc_compile.driver.job import DEFAULTS
from mlc_compile.driver.reuse import Reuse
from mlc_compile.target import find_target
from tests.driver.stand_ins import install

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


@pytest.fixture(scope="session")
def compiled(nano_artifact, tmp_path_factory):
    """What `compile` would leave: the artifact without weights, proof and log."""
    directory = Path(shutil.copytree(nano_artifact, tmp_path_factory.mktemp("stub") / "compiled"))
    for name in (PACKED_WEIGHTS, PROOF, "build-log.json"):
        (directory / name).unlink()
    return directory


@pytest.fixture
def stub(compiled, monkeypatch, tmp_path):
    """Steps that ran, by name; the compiler and the proof are stood in for."""
    ran = []
    install(compiled, tmp_path / "code", monkeypatch.setattr, ran)
    return ran


@pytest.fixture
def made(nano, tmp_path, stub):
    """`made("out")`: build with one cache into tmp_path/out; the Build, its bytes."""

    def run(out="out", options=DEFAULTS, cache="cache", frozen=False, targets=("cpu",)):
        stub.clear()
        reuse = Reuse(Store(tmp_path / cache), frozen)
        rows = tuple(find_target(name) for name in targets)
        return build(nano.path, rows, "q4f16_1", tmp_path / out, options, reuse=reuse)

    return run
