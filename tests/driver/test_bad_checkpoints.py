"""Every way in which a checkpoint can be wrong: one sentence, the right exit code, nothing left."""

import numpy as np
import pytest

from mlc_compile.checkpoint import open_checkpoint
from mlc_compile.driver.convert import convert
from mlc_compile.errors import CheckpointError, ConfigError, MlcError
from mlc_compile.model.weights import EMBEDDING, HEAD

Q = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


def lose(nano, *names):
    with nano.tensors() as tensors:
        for name in names or [n for n in tensors if ".mlp." in n or "layernorm" in n]:
            del tensors[name]


def gain(nano, count):
    with nano.tensors() as tensors:
        tensors |= {f"model.layers.0.extra_{i}": np.zeros(2, np.float32) for i in range(count)}


def reshape(nano):
    with nano.tensors() as tensors:
        tensors[Q] = tensors[Q].T.copy()


def poison(nano, name, index, bits):
    with nano.tensors() as tensors:
        tensors[name][index] = bits


def exceed(nano, name):
    with nano.tensors() as tensors:
        tensors[name] = np.full(tensors[name].shape, 1e9, np.float32)


def configure(nano, **changes):
    with nano.config() as config:
        config.update(changes)


def truncate(nano):
    file = nano.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def lie(nano):
    file = nano.path / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape":[64,64]', b'"shape":[64,65]', 1))


def shard(nano, change):
    nano.shard(2)
    change(nano.path)


def pickle(nano):
    (nano.path / "model.safetensors").rename(nano.path / "pytorch_model.bin")


def escape(path):
    index = path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))


def add_head(nano):
    with nano.tensors() as tensors:
        tensors[HEAD] = tensors[EMBEDDING] ^ 1


BAD = {
    "a tensor missing": (lambda n: lose(n, Q), f"1 tensors are missing: {Q}"),
    "many tensors missing": (lose, "10 tensors are missing: .* and 5 more"),
    "extra tensors": (
        lambda n: gain(n, 2),
        "2 tensors are not part of the model: model.layers.0.extra_0, model.layers.0.extra_1",
    ),
    "many extra tensors": (lambda n: gain(n, 6), "6 tensors are not .*extra_4 and 1 more"),
    "a wrong shape": (reshape, rf"wrong shape: {Q} is \[64, 128\], must be \[128, 64\]"),
    "a NaN": (lambda n: poison(n, Q, (3, 5), 0x7FC0), rf"{Q} at \[3, 5\] is nan"),
    "an infinity": (lambda n: poison(n, NORM, 7, 0xFF80), rf"{NORM} at \[7\] is -inf"),
    "a truncated file": (truncate, "model.safetensors is truncated"),
    "a lying header": (lie, "header lies about"),
    "a shard missing": (
        lambda n: shard(n, lambda p: (p / "model-00002-of-00002.safetensors").unlink()),
        "lacks 1 of 2 shards: model-00002-of-00002.safetensors",
    ),
    "an index that points outside": (
        lambda n: shard(n, escape),
        "names a file outside the directory: '../model-00002",
    ),
    "a pickle": (pickle, "pytorch_model.bin is a pickle"),
    "quantized weights": (
        lambda n: configure(n, quantization_config={"quant_method": "awq", "bits": 4}),
        r"already quantized \(awq, 4 bits\)",
    ),
    "another architecture": (
        lambda n: configure(n, model_type="llama"),
        "architecture 'llama' is not supported",
    ),
    "a config that contradicts itself": (
        lambda n: configure(n, num_key_value_heads=3),
        "must be a multiple of num_key_value_heads",
    ),
    "a config of another model": (
        lambda n: configure(n, num_hidden_layers=3),
        "11 tensors are missing: model.layers.2",
    ),
    "no tokenizer": (
        lambda n: (n.path / "tokenizer.json").unlink(),
        "has no tokenizer: tokenizer.json missing",
    ),
    "no config": (lambda n: (n.path / "config.json").unlink(), "has no config.json"),
    "an untied model without a head": (
        lambda n: configure(n, tie_word_embeddings=False),
        f"tie_word_embeddings is false, but {HEAD} is missing",
    ),
    "a tied model with a head of its own": (
        add_head,
        f"tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}",
    ),
}


@pytest.mark.parametrize(("spoil", "told"), BAD.values(), ids=BAD)
def test_a_bad_checkpoint_is_refused(nano, tmp_path, leftovers, spoil, told):
    spoil(nano)
    with pytest.raises(CheckpointError, match=told) as error:
        convert(nano.path, "q4f16_1", tmp_path / "out")
    assert error.value.exit_code == 3
    assert error.value.hint
    assert "\n" not in str(error.value)
    assert leftovers() == []


@pytest.mark.parametrize(("quant", "name"), [("q4f16_1", Q), ("q0f16", Q), ("q4f16_1", NORM)])
def test_weights_beyond_float16_need_another_scheme(nano, tmp_path, leftovers, quant, name):
    exceed(nano, name)
    with pytest.raises(ConfigError, match=rf"{name} at \[0.*\] is 1000000000.0, beyond") as error:
        convert(nano.path, quant, tmp_path / "out")
    assert error.value.exit_code == 2
    assert "q0f32" in error.value.hint
    assert leftovers() == []
    convert(nano.path, "q4f32_1", tmp_path / "out")


def test_of_several_faults_the_first_is_always_told(nano, tmp_path):
    for name in (Q, "model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        poison(nano, name, 1, 0x7FC0)
    told = set()
    for _ in range(5):
        with pytest.raises(MlcError) as error:
            convert(nano.path, "q4f16_1", tmp_path / "out", threads=4)
        told.add(str(error.value))
    assert len(told) == 1
    assert "layers.0.mlp.up_proj.weight at [1, 0]" in told.pop()


def test_the_prefix_of_some_tensors_only_is_an_error(nano, tmp_path):
    with nano.tensors() as tensors:
        tensors["norm.weight"] = tensors.pop("model.norm.weight")
    with pytest.raises(CheckpointError, match="mixes names with and without"):
        open_checkpoint(nano.path)


COMMANDS = {
    "a bad checkpoint": (pickle, "q4f16_1", 3, "is a pickle"),
    "an unknown scheme": (lambda _nano: None, "q4f16", 2, "did you mean 'q4f16_1'"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_says_so_and_exits(cli, nano, tmp_path, case):
    spoil, quant, code, told = COMMANDS[case]
    spoil(nano)
    ran = cli("convert", nano.path, "-o", tmp_path / "out", "--quant", quant)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_an_unwritable_place_is_the_machine_s_fault(cli, nano_checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    ran = cli("convert", nano_checkpoint, "-o", tmp_path / "file" / "out")
    assert (ran.code, ran.out) == (7, "")
    assert str(tmp_path / "file") in ran.err


def test_the_command_prints_what_it_wrote(cli, nano_checkpoint, tmp_path):
    ran = cli("convert", nano_checkpoint, "-o", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["quant"] == "q4f16_1"
    assert ran.json["tied"] is True
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("value", [0.0, 3e38])
def test_weights_that_compute_nothing_are_refused(nano, tmp_path, value):
    with nano.tensors() as tensors:
        for name, tensor in tensors.items():
            tensors[name] = np.full(tensor.shape, value, np.float32)
    with pytest.raises(CheckpointError, match="compute nothing"):
        convert(nano.path, "q0f32", tmp_path / "out")
    assert not (tmp_path / "out").exists()
