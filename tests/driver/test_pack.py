"""A weight plan carried out: sources joined by rows, packed, each part at its offset."""

import json

import msgspec
import numpy as np
import pytest

from mlc_compile.artifact import TENSOR_CACHE, PlannedTensor, WeightPlan
from mlc_compile.checkpoint import TensorCache, tensor_cache
from mlc_compile.driver.pack import pack_weights, packed_files
from mlc_compile.layout import LAYOUTS, place
from mlc_compile.progress import SILENT

RANDOM = np.random.default_rng(0)
STORED = {
    "a.gamma.weight": RANDOM.standard_normal(3).astype(np.float16),  # 12 bytes once wide
    "a.q.weight": RANDOM.standard_normal((5, 4)).astype(np.float32),
    "a.k.weight": RANDOM.standard_normal((2, 4)).astype(np.float32),
    "a.o.q_weight": RANDOM.integers(0, 2**32, (17, 4), np.uint32),
    "a.o.q_scale": RANDOM.standard_normal((17, 1)).astype(np.float16),
}
# name, sources, layout, neutral shapes of the joined rows
TENSORS = (
    ("a.gamma", ["a.gamma.weight"], "wide", {"weight": ((3,), "float16")}),
    ("a.q+k", ["a.q.weight", "a.k.weight"], "rows16", {"weight": ((7, 4), "float32")}),
    (
        "a.o",
        ["a.o.weight"],
        "rows16",
        {"q_weight": ((17, 4), "uint32"), "q_scale": ((17, 1), "float16")},
    ),
)


class Stored:
    """As much of a TensorCache as packing reads."""

    names = tuple(STORED)
    parameters = 1234

    def read(self, name):
        return STORED[name]


@pytest.fixture
def plan():
    tensors, end = [], 0
    for name, sources, layout, neutral in TENSORS:
        parts, end = place(name, LAYOUTS[layout].shapes(neutral), end)
        tensors.append(PlannedTensor(name=name, sources=tuple(sources), layout=layout, parts=parts))
    return WeightPlan(tensors=tuple(tensors), nbytes=end)


@pytest.fixture
def packed(plan, tmp_path):
    pack_weights(plan, Stored(), tmp_path, SILENT)
    return (tmp_path / "weights.bin").read_bytes()


def unpacked(plan, packed, index):
    """The parts of a planned tensor, read back from the file's bytes."""
    tensor = plan.tensors[index]
    arrays = {}
    for part in tensor.parts:
        flat = np.frombuffer(packed, part.dtype, np.prod(part.shape), part.offset)
        arrays[part.name.rpartition(".")[2]] = flat.reshape(part.shape)
    return LAYOUTS[tensor.layout].unpack(arrays, TENSORS[index][3])


def test_sources_are_joined_by_rows_in_the_plan_s_order(plan, packed):
    joined = np.concatenate([STORED["a.q.weight"], STORED["a.k.weight"]])
    np.testing.assert_array_equal(unpacked(plan, packed, 1)["weight"], joined)


def test_every_part_lies_at_its_offset(plan, packed):
    np.testing.assert_array_equal(unpacked(plan, packed, 0)["weight"], STORED["a.gamma.weight"])
    for suffix, array in unpacked(plan, packed, 2).items():
        np.testing.assert_array_equal(array, STORED[f"a.o.{suffix}"])


def test_the_file_has_the_planned_size_and_zeros_between_parts(plan, packed):
    assert len(packed) == plan.nbytes
    gap = packed[12 : plan.tensors[1].parts[0].offset]
    assert len(gap) == 52
    assert not any(gap)


@pytest.fixture
def sharded(plan, tmp_path, monkeypatch):
    """The same plan for a page, in shards of at most 200 bytes."""
    monkeypatch.setattr(tensor_cache, "SHARD_BYTES", 200)
    plan = msgspec.structs.replace(plan, sharded=True)
    pack_weights(plan, Stored(), tmp_path, SILENT)
    return plan


def test_shards_are_mlc_s_container_of_the_plan_s_parts(sharded, tmp_path):
    cache = TensorCache(tmp_path, verify=False)
    parts = [part for tensor in sharded.tensors for part in tensor.parts]
    assert cache.names == tuple(part.name for part in parts)
    assert [(cache.shape(p.name), cache.dtype(p.name)) for p in parts] == [
        (p.shape, p.dtype) for p in parts
    ]
    packed = LAYOUTS["wide"].pack({"weight": STORED["a.gamma.weight"]})
    np.testing.assert_array_equal(cache.read("a.gamma.weight"), packed["weight"])
    assert cache.parameters == Stored.parameters


def test_the_files_that_are_written_are_those_that_are_told(sharded, tmp_path):
    written = {path.name for path in tmp_path.iterdir()}
    assert written == set(packed_files(sharded))
    index = json.loads((tmp_path / TENSOR_CACHE).read_bytes())
    assert [shard["dataPath"] for shard in index["records"]] == list(packed_files(sharded)[:-1])
    for shard in index["records"]:
        assert (tmp_path / shard["dataPath"]).stat().st_size == shard["nbytes"]


def test_a_plan_for_shards_is_another_plan(plan, sharded):
    assert plan.digest() != sharded.digest()
    assert packed_files(plan) == ("weights.bin",)
