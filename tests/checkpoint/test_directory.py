"""Naming a model on the command line, and its tokenizer files."""

import json

import pytest

from mlc_compile.checkpoint import find_model, read_config, tokenizer_files
from mlc_compile.errors import CheckpointError, ConfigError


def test_demo_is_the_checkpoint_inside_the_package(tiny_checkpoint):
    assert find_model("demo") == tiny_checkpoint
    assert read_config(tiny_checkpoint)["model_type"] == "qwen3"


def test_a_model_directory_is_found(nano_checkpoint):
    assert find_model(str(nano_checkpoint)) == nano_checkpoint


def test_an_unknown_directory_is_a_usage_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no model directory Qwen/Qwen3-0.6B") as error:
        find_model("Qwen/Qwen3-0.6B")
    assert error.value.exit_code == 2
    assert "download" in error.value.hint


def test_a_file_is_not_a_model(nano_checkpoint):
    with pytest.raises(ConfigError, match="is a file, a model must be a directory"):
        find_model(str(nano_checkpoint / "model.safetensors"))


def test_a_directory_of_ours_is_not_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "manifest.json").write_text('{"kind": "weights", "seal": ""}')
    with pytest.raises(ConfigError, match="must be a model directory, but mlc-compile wrote it"):
        find_model(str(tmp_path))


def test_a_directory_without_a_config_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config.json") as error:
        find_model(str(tmp_path))
    assert error.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '{"a":' * 100_000])
def test_a_config_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json is not a JSON object"):
        read_config(tmp_path)


def test_tokenizer_files_are_listed_required_ones_first(nano_checkpoint):
    assert tokenizer_files(nano_checkpoint) == (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
    )


def test_a_missing_tokenizer_is_told(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no tokenizer: tokenizer.json missing") as error:
        tokenizer_files(tmp_path)
    assert error.value.exit_code == 3


def test_a_damaged_tokenizer_is_told(tmp_path):
    (tmp_path / "tokenizer.json").write_text("not found")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match=r"tokenizer.json is not a JSON object"):
        tokenizer_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "Qwen/Qwen3-0.6B",
            "download it first: hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B",
        ),
        ("/no/such", "download the model first and give its directory"),
        ("models/a/b", "download the model first and give its directory"),
        ("../gone", "download the model first and give its directory"),
    ],
)
def test_what_looks_like_a_name_on_the_hub_is_told_with_its_download(name, hint):
    with pytest.raises(ConfigError) as error:
        find_model(name)
    assert error.value.hint.startswith(hint)
