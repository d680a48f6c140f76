"""Finding a checkpoint's tensors: one file or shards, with or without the `model.` prefix."""

import numpy as np
import pytest

from mlc_compile.checkpoint import open_checkpoint
from mlc_compile.errors import CheckpointError

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(4, np.float32)
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shards(weight_map, one=None, two=None):
    return {
        ONE: {"model.a": A} if one is None else one,
        TWO: {"model.b": B} if two is None else two,
        INDEX: {"metadata": {"total_size": 40}, "weight_map": weight_map},
    }


def test_a_single_file_gives_its_tensors(model_dir):
    checkpoint = open_checkpoint(model_dir({SINGLE: {"model.a": A, "lm_head.weight": B}}))
    assert checkpoint.names == ("lm_head.weight", "model.a")
    assert checkpoint.shape("model.a") == (2, 3)
    np.testing.assert_array_equal(checkpoint.read("model.a"), A)
    np.testing.assert_array_equal(checkpoint.read_rows("model.a", 1, 2), A[1:])
    assert not checkpoint.prefix_added


def test_shards_are_read_through_their_index(model_dir):
    checkpoint = open_checkpoint(model_dir(shards({"model.a": ONE, "model.b": TWO})))
    assert checkpoint.names == ("model.a", "model.b")
    np.testing.assert_array_equal(checkpoint.read("model.b"), B)


def test_a_missing_prefix_is_added(model_dir):
    bare = {"embed_tokens.weight": A, "layers.0.mlp.weight": A, "norm.weight": B}
    checkpoint = open_checkpoint(model_dir({SINGLE: bare}))
    assert checkpoint.names == tuple(f"model.{name}" for name in sorted(bare))
    assert checkpoint.prefix_added


REFUSED = {
    "mixed prefixes": (
        {SINGLE: {"model.norm.weight": B, "layers.0.w": A}},
        "mixes names with and without 'model.': model.norm.weight and layers.0.w",
    ),
    "a shard missing": (
        {ONE: {"model.a": A}, INDEX: {"weight_map": {"model.a": ONE, "model.b": TWO}}},
        f"lacks 1 of 2 shards: {TWO}",
    ),
    "a file in another directory": (
        shards({"model.a": ONE, "model.b": "../other/model.safetensors"}),
        "names a file outside the directory: '../other/model.safetensors'",
    ),
    "an absolute path": (
        shards({"model.a": ONE, "model.b": "/etc/passwd"}),
        "names a file outside the directory: '/etc/passwd'",
    ),
    "a Windows path": (
        shards({"model.a": ONE, "model.b": "..\\x.safetensors"}),
        "names a file outside the directory",
    ),
    "a tensor in another shard than listed": (
        shards({"model.a": TWO, "model.b": TWO, "model.c": ONE}),
        "disagree about model.a, model.c",
    ),
    "an index that is none": (
        {INDEX: {"weights": {}}, SINGLE + ".x": b""},
        "is not an index: .*weight_map",
    ),
    "a pickle": ({"pytorch_model.bin": b"\x80\x02"}, "pytorch_model.bin is a pickle, .*run code"),
    "a torch file": ({"model.pth": b"PK"}, "model.pth is a pickle"),
    "a GGUF file": ({"model-q4.gguf": b"GGUF"}, "is a GGUF file, .*already quantized"),
    "no weights": ({}, "has neither model.safetensors nor"),
}


@pytest.mark.parametrize(("files", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_told_in_a_sentence(model_dir, files, told):
    directory = model_dir(files)
    with pytest.raises(CheckpointError, match=told) as error:
        open_checkpoint(directory)
    assert error.value.exit_code == 3
    assert str(directory) in str(error.value)
    assert "\n" not in str(error.value)


def test_many_missing_shards_are_counted_beyond_five(model_dir):
    names = {f"model.{i}": f"shard-{i}.safetensors" for i in range(8)}
    with pytest.raises(CheckpointError, match=r"lacks 8 of 8 shards: .*shard-4.* and 3 more$"):
        open_checkpoint(model_dir({INDEX: {"weight_map": names}}))
