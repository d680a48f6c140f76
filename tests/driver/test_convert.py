"""`convert` on a good checkpoint: stored values, proof, determinism, memory, no leftovers."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mlc_compile.artifact import TENSOR_CACHE, WeightsManifest, describe, read_manifest
from mlc_compile.checkpoint import TensorCache, open_checkpoint
from mlc_compile.checkpoint.tensor_cache import TensorCacheWriter
from mlc_compile.driver import convert as module
from mlc_compile.driver.convert import convert
from mlc_compile.driver.proof import proof_prompt
from mlc_compile.errors import ConfigError
from mlc_compile.model import load_config
from mlc_compile.model.reference import forward
from mlc_compile.model.weights import EMBEDDING, HEAD, weight_specs
from mlc_compile.progress import Silent
from mlc_compile.quant import SCHEMES, part_name

PROMPT = [433, 354, 275, 196, 117, 38, 471, 392]  # the proof's, among 512 words

every_scheme = pytest.mark.parametrize("quant", SCHEMES)


def decoded(directory, quant, name):
    """A stored matrix as float32, by the scheme's own decoder."""
    cache, suffixes = TensorCache(directory), SCHEMES[quant].parts(1, 32)
    return SCHEMES[quant].decode({s: cache.read(part_name(name, s)) for s in suffixes})


@every_scheme
def test_every_tensor_is_stored_as_its_scheme_says(nano, tmp_path, quant):
    manifest = convert(nano.path, quant, tmp_path / "out")
    checkpoint, cache = open_checkpoint(nano.path), TensorCache(tmp_path / "out")
    scheme, expected = SCHEMES[quant], {}
    for spec in weight_specs(load_config(checkpoint.config, "c"), tied=True):
        w = checkpoint.read(spec.name)
        parts = {"weight": w.astype(scheme.norm_dtype)} if w.ndim == 1 else scheme.encode(w)
        expected |= {part_name(spec.name, suffix): part for suffix, part in parts.items()}
    assert cache.names == tuple(expected)
    for name, part in expected.items():
        np.testing.assert_array_equal(cache.read(name), part)
        assert cache.dtype(name) == part.dtype
    assert (manifest.tied, manifest.kept, manifest.notes) == (True, (), ())


@every_scheme
def test_the_proof_is_the_reference_on_the_stored_values(nano, tmp_path, quant):
    out = tmp_path / "out"
    convert(nano.path, quant, out)
    config = load_config(open_checkpoint(nano.path).config, "c")
    cache, scheme = TensorCache(out), SCHEMES[quant]

    def weights(name):
        if name.endswith("norm.weight"):
            return np.asarray(cache.read(name), np.float32)
        return decoded(out, scheme.name, name)

    proof = load_file(out / "proof.safetensors")
    logits = forward(config, True, weights, proof["prompt"])
    # the same arithmetic; only the matmul's blocking may differ
    np.testing.assert_allclose(proof["logits"], logits, atol=1e-4, rtol=0)
    assert proof["logits"].shape == (8, 512)


def test_the_proof_prompt_is_fixed_and_within_the_vocabulary():
    for vocab in (2, 512, 151936):
        ids = proof_prompt(vocab)
        assert (ids.dtype, ids.shape) == (np.int32, (8,))
        assert ids.min() >= 0
        assert ids.max() < vocab
    # Stored proofs hold these: another prompt would be another format.
    assert proof_prompt(512).tolist() == PROMPT
    assert len(set(proof_prompt(151936).tolist())) == 8


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def test_threads_and_blocks_leave_no_trace(nano, tmp_path, monkeypatch):
    convert(nano.path, "q4f16_1", tmp_path / "one", threads=1)
    monkeypatch.setattr(module, "BLOCK", 320)  # five rows, which divides no tensor evenly
    convert(nano.path, "q4f16_1", tmp_path / "many", threads=7)
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_shards_and_missing_prefixes_give_the_same_weights(nano, tmp_path):
    whole = convert(nano.path, "q4f16_1", tmp_path / "one")
    with nano.tensors() as tensors:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
    nano.shard(3)
    split = convert(nano.path, "q4f16_1", tmp_path / "two")
    assert split.digest == whole.digest
    assert any("prefix 'model.'" in note for note in split.notes)


def test_the_directory_has_all_that_an_artifact_needs(nano, tmp_path):
    out = tmp_path / "out"
    manifest = convert(nano.path, "q4f16_1", out)
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "manifest.json",
        "merges.txt",
        "quantization.json",
        "mlc-chat-config.json",
        "params_shard_0.bin",
        "proof.safetensors",
        TENSOR_CACHE,
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
    assert read_manifest(out, WeightsManifest) == manifest
    for file in manifest.files:
        assert describe(out / file.path, file.path) == file
    assert (out / "tokenizer.json").read_bytes() == (nano.path / "tokenizer.json").read_bytes()
    assert load_config(json.loads((out / "config.json").read_text()), "c") == load_config(
        open_checkpoint(nano.path).config, "c"
    )


def test_the_chat_config_is_mlc_s(nano, tmp_path):
    convert(nano.path, "q4f16_1", tmp_path / "out")
    chat = json.loads((tmp_path / "out" / "mlc-chat-config.json").read_text())
    assert (chat["model_type"], chat["quantization"]) == ("qwen3", "q4f16_1")
    assert (chat["vocab_size"], chat["context_window_size"]) == (512, 512)
    assert (chat["temperature"], chat["top_p"]) == (0.6, 0.95)
    assert chat["conv_template"]["stop_token_ids"] == [509, 507]
    assert chat["model_config"]["head_dim"] == 32
    assert (chat["pad_token_id"], chat["bos_token_id"]) == (507, 507)
    assert set(chat["tokenizer_files"]) <= {p.name for p in (tmp_path / "out").iterdir()}


def test_without_a_generation_config_one_is_made_and_noted(nano, tmp_path):
    (nano.path / "generation_config.json").unlink()
    manifest = convert(nano.path, "q0f16", tmp_path / "out")
    made = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert made == {"bos_token_id": 507, "do_sample": False, "eos_token_id": [509]}
    assert any("generation_config.json" in note for note in manifest.notes)


def test_a_head_equal_to_the_embedding_counts_as_tied(nano, tmp_path):
    plain = convert(nano.path, "q4f16_1", tmp_path / "plain")
    with nano.tensors() as tensors:
        tensors[HEAD] = tensors[EMBEDDING]
    copied = convert(nano.path, "q4f16_1", tmp_path / "copied")
    assert copied.tied
    assert copied.digest == plain.digest
    assert any(HEAD in note for note in copied.notes)


def test_an_untied_head_is_stored_and_used(nano, tmp_path):
    with nano.tensors() as tensors, nano.config() as config:
        config["tie_word_embeddings"] = False
        tensors[HEAD] = tensors[EMBEDDING] ^ 0x8000  # the sign of a BF16
    manifest = convert(nano.path, "q0f32", tmp_path / "out")
    assert not manifest.tied
    np.testing.assert_array_equal(
        TensorCache(tmp_path / "out").read(HEAD), open_checkpoint(nano.path).read(HEAD)
    )
    tied = forward(
        load_config(open_checkpoint(nano.path).config, "c"),
        True,
        open_checkpoint(nano.path).read,
        proof_prompt(512),
    )
    logits = load_file(tmp_path / "out" / "proof.safetensors")["logits"]
    np.testing.assert_allclose(logits, -tied, atol=1e-4, rtol=0)


@pytest.mark.parametrize("has_head", [False, True])
def test_a_config_silent_about_the_tie_follows_the_tensors(nano, tmp_path, has_head):
    with nano.tensors() as tensors, nano.config() as config:
        del config["tie_word_embeddings"]
        if has_head:
            tensors[HEAD] = tensors[EMBEDDING]
    assert convert(nano.path, "q0f16", tmp_path / "out").tied is not has_head
    settled = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settled["tie_word_embeddings"] is not has_head


def test_a_matrix_that_does_not_fit_groups_is_kept_and_listed(nano, tmp_path):
    with nano.tensors() as tensors, nano.config() as config:
        config["intermediate_size"] = 180
        for layer in range(2):
            mlp = f"model.layers.{layer}.mlp"
            for part in ("gate", "up"):
                tensors[f"{mlp}.{part}_proj.weight"] = tensors[f"{mlp}.{part}_proj.weight"][:180]
            tensors[f"{mlp}.down_proj.weight"] = tensors[f"{mlp}.down_proj.weight"][:, :180].copy()
    manifest = convert(nano.path, "q4f16_1", tmp_path / "out")
    assert manifest.kept == tuple(
        f"model.layers.{i}.mlp.down_proj.weight: its 180 columns are not a multiple of 32"
        for i in range(2)
    )
    assert TensorCache(tmp_path / "out").dtype("model.layers.0.mlp.down_proj.weight") == "float16"


class Recorder(Silent):
    """Remembers what it was told."""

    def __init__(self):
        self.stages = []

    def step(self, name, total=None):
        self.stages.append([name, total, 0])

    def advance(self, amount=1):
        self.stages[-1][2] += amount


def test_each_stage_with_a_total_reaches_it(nano, tmp_path):
    recorder = Recorder()
    convert(nano.path, "q4f16_1", tmp_path / "out", recorder)
    counted = [(total, done) for _name, total, done in recorder.stages if total is not None]
    assert len(counted) == 2
    assert all(total == done for total, done in counted)


class Stopped(Silent):
    """Someone presses Ctrl-C in the stage called `stage`."""

    def __init__(self, stage):
        self.stage, self.here = stage, False

    def step(self, name, total=None):
        self.here = self.stage in name

    def advance(self, amount=1):
        if self.here:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["quantizing", "reference logits"])
def test_an_interrupt_leaves_nothing(nano, tmp_path, leftovers, stage):
    with pytest.raises(KeyboardInterrupt):
        convert(nano.path, "q4f16_1", tmp_path / "out", Stopped(stage))
    assert leftovers() == []


def test_a_failure_leaves_the_earlier_result(nano, tmp_path, leftovers):
    convert(nano.path, "q4f16_1", tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        convert(nano.path, "q0f32", tmp_path / "out", Stopped("quantizing"))
    assert contents(tmp_path / "out") == before
    assert leftovers() == ["out"]


def test_a_disk_that_fills_up_while_writing_leaves_nothing(nano, tmp_path, leftovers, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TensorCacheWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        convert(nano.path, "q4f16_1", tmp_path / "out")
    assert leftovers() == []


def test_too_small_a_disk_is_told_before_the_work(nano, tmp_path, leftovers, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(OSError, match=r"need 0 MiB, but 0 MiB are free") as error:
        convert(nano.path, "q4f16_1", tmp_path / "out")
    assert error.value.errno == errno.ENOSPC
    assert error.value.filename == str(tmp_path / "out")
    assert leftovers() == []


def test_a_directory_of_others_is_never_replaced(nano, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="exists and was not written by mlc-compile"):
        convert(nano.path, "q4f16_1", tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"years of work"}


MEASURE = """
import sys
from pathlib import Path
from mlc_compile.driver.convert import convert

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

before = peak()
convert(Path(sys.argv[1]), "q4f16_1", Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")
def test_no_large_tensor_is_ever_whole_in_memory(nano, tmp_path):
    vocab = 800_000  # of 64 columns: 205 MB in float32, 102 MB in the file
    with nano.tensors() as tensors, nano.config() as config:
        config["vocab_size"] = vocab
        tensors[EMBEDDING] = np.full((vocab, 64), 0x3F80, np.uint16)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, nano.path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    logits = 8 * vocab * 4  # the proof's, held twice while it is written
    # a few blocks of 4 MB for each thread, and blocks of 16 MB in the proof
    assert int(ran.stdout) < 4 * logits + 110e6


def test_convert_prints_the_path_alone(cli, nano, tmp_path):
    ran = cli("convert", nano.path, "-o", tmp_path / "out")
    assert ran.out == f"{tmp_path / 'out'}\n"
    assert "converting " in ran.err
    assert "as q4f16_1" in ran.err
