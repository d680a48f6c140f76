"""The container of converted tensors: placement, order of writing, damage."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from mlc_compile.artifact import WeightsManifest, list_files, write_manifest
from mlc_compile.checkpoint.tensor_cache import (
    SHARD_BYTES,
    TensorCache,
    TensorCacheWriter,
    plan_shards,
)
from mlc_compile.errors import ConfigError, DamageError

ARRAYS = {
    "a.q_weight": np.arange(24, dtype=np.uint32).reshape(6, 4),
    "a.q_scale": np.linspace(0, 1, 6, dtype=np.float16).reshape(6, 1),
    "norm.weight": np.linspace(-1, 1, 5, dtype=np.float32),
}


def fill(directory, rows):
    """Write ARRAYS, row by row in the order of `rows`, with a manifest."""
    directory.mkdir()
    writer = TensorCacheWriter(
        directory, plan_shards((n, a.shape, a.dtype.name) for n, a in ARRAYS.items())
    )
    for name, row in rows:
        writer.write(name, row, ARRAYS[name][row : row + 1])
    with ThreadPoolExecutor(1) as pool:
        writer.finish(100, pool)
    manifest = WeightsManifest(
        model="m",
        quant="q",
        mlc_compile="0",
        tied=True,
        kept=(),
        digest="",
        files=list_files(directory),
    )
    write_manifest(directory, manifest)
    return directory


ROWS = [(name, row) for name, array in ARRAYS.items() for row in range(len(array))]


def test_what_is_written_is_read(tmp_path):
    cache = TensorCache(fill(tmp_path / "w", ROWS))
    assert cache.names == tuple(ARRAYS)
    for name, array in ARRAYS.items():
        assert cache.shape(name) == array.shape
        assert cache.dtype(name) == array.dtype.name
        np.testing.assert_array_equal(cache.read(name), array)
        np.testing.assert_array_equal(cache.read_rows(name, 1, 3), array[1:3])


def test_reading_is_by_memory_map(tmp_path):
    w = TensorCache(fill(tmp_path / "w", ROWS)).read("a.q_weight")
    assert isinstance(w, np.memmap)
    assert not w.flags.writeable


def test_the_order_of_writing_leaves_no_trace(tmp_path):
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    one, two = fill(tmp_path / "one", ROWS), fill(tmp_path / "two", shuffled)
    for file in ("params_shard_0.bin", "tensor-cache.json"):
        assert (one / file).read_bytes() == (two / file).read_bytes()


def test_the_index_has_mlc_s_schema(tmp_path):
    index = json.loads((fill(tmp_path / "w", ROWS) / "tensor-cache.json").read_text())
    (shard,) = index["records"]
    assert (shard["dataPath"], shard["format"]) == ("params_shard_0.bin", "raw-shard")
    assert len(shard["md5sum"]) == 32
    assert shard["records"][1] == {
        "name": "a.q_scale",
        "shape": [6, 1],
        "dtype": "float16",
        "format": "raw",
        "nbytes": 12,
        "byteOffset": 96,
    }
    assert index["metadata"]["ParamBytes"] == shard["nbytes"] == 96 + 12 + 20


def test_shards_stay_under_the_limit_and_big_tensors_alone():
    row = SHARD_BYTES // 4 // 4  # elements of a quarter of a shard
    sizes = [1, 2, 2, 9, 1, 1, 4, 3]
    tensors = [(str(i), (n, row), "float32") for i, n in enumerate(sizes)]
    shards = plan_shards(tensors)
    held = [[int(r.name) for r in shard.records] for shard in shards]
    assert held == [[0, 1], [2], [3], [4, 5], [6], [7]]
    assert all(s.nbytes <= SHARD_BYTES or len(s.records) == 1 for s in shards)
    for shard in shards:
        assert all(a.byteOffset + a.nbytes == b.byteOffset for a, b in pairwise(shard.records))


@pytest.mark.parametrize("file", ["params_shard_0.bin", "tensor-cache.json"])
def test_a_changed_byte_is_damage(tmp_path, file):
    path = fill(tmp_path / "w", ROWS) / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=f"{file} is damaged or missing") as error:
        TensorCache(path.parent).read("a.q_weight")
    assert error.value.exit_code == 6
    assert "convert" in error.value.hint


def test_a_lost_shard_is_damage(tmp_path):
    directory = fill(tmp_path / "w", ROWS)
    (directory / "params_shard_0.bin").unlink()
    with pytest.raises(DamageError, match=r"params_shard_0.bin is damaged or missing"):
        TensorCache(directory).read("norm.weight")


def test_a_model_directory_is_not_a_weights_directory(nano_checkpoint):
    with pytest.raises(ConfigError, match="must be a weights directory, but holds a model checkp"):
        TensorCache(nano_checkpoint)
