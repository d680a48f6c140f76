"""The checkpoint that the script writes is one that our readers and tokenizers accept."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from mlc_compile.model import load_config
from mlc_compile.model.weights import weight_specs
from mlc_compile.target import config_dir

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "make_synthetic_checkpoint.py"
SHAPES = sorted(path.stem for path in (config_dir() / "models").glob("*.toml"))


def make(*arguments):
    command = [sys.executable, ROOT / "scripts" / "make_synthetic_checkpoint.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def micro(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic") / "micro"
    made = make("qwen3-micro", "-o", out)
    assert made.returncode == 0, made.stderr
    return out


def digests(directory):
    return {p.name: hashlib.sha256(p.read_bytes()).digest() for p in directory.iterdir()}


def test_its_tensors_are_those_that_the_model_expects(micro):
    config = load_config(json.loads((micro / "config.json").read_text()), "config.json")
    tensors = load_file(micro / "model.safetensors")
    expected = {s.name: s.shape for s in weight_specs(config, config.tie_word_embeddings)}
    assert {name: t.shape for name, t in tensors.items()} == expected
    assert {t.dtype for t in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_norms_are_one_and_weights_have_the_stated_spread(micro):
    tensors = load_file(micro / "model.safetensors")
    norm = tensors["model.norm.weight"].astype(np.float32)
    weight = tensors["model.embed_tokens.weight"].astype(np.float32)
    assert (norm == 1).all()
    assert abs(weight.std() - 0.02) < 1e-3  # 65536 draws: the deviation is off by 0.3 %
    assert abs(weight.mean()) < 1e-3


def test_the_seed_decides_the_bytes(micro, tmp_path):
    make("qwen3-micro", "-o", tmp_path / "same")
    make("qwen3-micro", "-o", tmp_path / "other", "--seed", "1")
    assert digests(tmp_path / "same") == digests(micro)
    assert digests(tmp_path / "other")["model.safetensors"] != digests(micro)["model.safetensors"]


@pytest.mark.parametrize("text", ["hello world", " naïve 中文 \n\n\t 123", "<|im_start|>user"])
def test_its_tokenizer_gives_any_text_back(micro, text):
    tokenizer = Tokenizer.from_file(str(micro / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_its_tokenizer_covers_every_id_and_merges_words(micro):
    tokenizer = Tokenizer.from_file(str(micro / "tokenizer.json"))
    vocab = json.loads((micro / "config.json").read_text())["vocab_size"]
    assert tokenizer.get_vocab_size() == vocab
    assert all(tokenizer.id_to_token(i) is not None for i in range(vocab))
    assert len(tokenizer.encode("at").ids) == 1


def test_stop_tokens_are_special_tokens_of_the_tokenizer(micro):
    generation = json.loads((micro / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(micro / "tokenizer.json"))
    names = [tokenizer.id_to_token(i) for i in generation["eos_token_id"]]
    assert names == ["<|im_end|>", "<|endoftext|>"]


def test_an_unknown_shape_is_refused_with_near_matches(tmp_path):
    made = make("qwen3-mikro", "-o", tmp_path / "out")
    assert made.returncode == 2
    assert "qwen3-micro" in made.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_with_files_is_never_written_to(tmp_path):
    (tmp_path / "mine").write_text("keep")
    assert make("qwen3-micro", "-o", tmp_path).returncode == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_a_config_that_the_model_reads(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_synthetic_checkpoint as script

    config = load_config(script.hf_config(script.read_shape(name)), name)
    assert config.num_attention_heads % config.num_key_value_heads == 0


def test_large_models_are_sharded_below_the_limit_with_an_index(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_synthetic_checkpoint as script

    monkeypatch.setattr(script, "SHARD_BYTES", 200_000)
    script.write_checkpoint(script.read_shape("qwen3-micro"), tmp_path / "out", seed=0)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert {f.name for f in files} == set(index["weight_map"].values())
    for file in files:
        tensors = load_file(file)
        size = sum(t.nbytes for t in tensors.values())
        assert size <= 200_000 or len(tensors) == 1
        assert {index["weight_map"][name] for name in tensors} == {file.name}


def test_a_file_is_no_directory_to_write(tmp_path):
    (tmp_path / "file").write_text("keep")
    made = make("qwen3-micro", "-o", tmp_path / "file")
    assert made.returncode == 2
    assert made.stderr.startswith(f"error: {tmp_path / 'file'} is a file\n hint: ")


def test_a_python_without_the_package_is_told_which_to_use(tmp_path):
    command = [sys.executable, "-S", SCRIPT, "qwen3-micro", "-o", tmp_path / "out"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert "is not installed" in made.stderr
    assert (
        " hint: run it with the environment that has mlc_compile: .venv/bin/python" in made.stderr
    )
