"""`compile`: a config becomes a library; what cannot be done is refused in a sentence."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.checkpoint import read_config
from mlc_compile.driver.compile import compile_model
from mlc_compile.driver.job import Options, choose_kv
from mlc_compile.driver.limits import limits_for
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.backend import EMITTERS
from mlc_compile.emit.link import linker
from mlc_compile.errors import CheckpointError, ConfigError, TargetError
from mlc_compile.model import load_config
from mlc_compile.target import find_target, target_names

HAS_ZIG = importlib.util.find_spec("ziglang") is not None


@pytest.fixture(scope="module")
def config_only(nano_checkpoint, tmp_path_factory):
    """A model directory with nothing but its config."""
    directory = tmp_path_factory.mktemp("models") / "bare"
    directory.mkdir()
    shutil.copyfile(nano_checkpoint / "config.json", directory / "config.json")
    return directory


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment without programs, compilers among them."""
    return {**os.environ, "PATH": str(tmp_path_factory.mktemp("empty"))}


@pytest.fixture(scope="module")
def compiled(config_only, tmp_path_factory, cli, bare):
    """What the command made of it: the directory and the JSON it printed. Where there is zig,
    it is all that there is.
    """
    out = tmp_path_factory.mktemp("compiled") / "out"
    asked = ["-o", out, "--json", "--context", 200, "--quant", "q4f32_1"]
    ran = cli("compile", config_only, *asked, env=bare if HAS_ZIG else os.environ)
    assert ran.code == 0, ran.err
    return out, ran.json


@pytest.fixture(scope="module")
def config(nano_checkpoint):
    return load_config(read_config(nano_checkpoint), "config.json")


def test_a_config_alone_is_enough(compiled):
    out, told = compiled
    assert {p.name for p in out.iterdir()} == {
        "manifest.json",
        "lib.so" if find_target("cpu").system == "linux" else "lib.dylib",
        "config.json",
        "generation_config.json",
        "mlc-chat-config.json",
        "report.json",
        "build-log.json",
    }
    assert told["directory"] == str(out)
    assert told["plan_digest"] == read_manifest(out, Manifest).plan_digest
    assert set(told["seconds"]) == {"importing", "optimizing", "generating code"}


def test_the_manifest_says_what_was_asked_for(compiled):
    manifest = read_manifest(compiled[0], Manifest)
    assert (manifest.model, manifest.quant, manifest.target) == ("bare", "q4f32_1", "cpu")
    assert (manifest.limits.context, manifest.limits.prefill_chunk) == (200, 200)
    assert manifest.kv.dtype == "float32"
    assert manifest.weights_digest is None
    assert manifest.check.status == "not run"
    assert manifest.activation_bytes > 0


def test_the_report_lists_weights_memory_and_events(compiled):
    report = json.loads((compiled[0] / "report.json").read_text())
    manifest = read_manifest(compiled[0], Manifest)
    assert report["memory"]["weights"] == manifest.plan.nbytes
    assert report["memory"]["kv_cache"] == manifest.kv.nbytes(200)
    assert report["memory"]["activations"] == max(
        one["planned_bytes"] for one in report["memory"]["functions"]
    )
    assert sum(w["nbytes"] for w in report["weights"]) <= manifest.plan.nbytes
    assert {"MergeProjections", "LowerOperators"} <= {e["source"] for e in report["events"]}


def test_a_library_without_weights_is_not_run(compiled, here):
    ran = here("run", compiled[0], "-p", "hello")
    assert (ran.code, ran.out) == (2, "")
    assert "holds a library without weights" in ran.err
    assert "mlc-compile build" in ran.err


REFUSED = {
    "an unknown scheme": (["--quant", "q4f16"], 2, "no quantization scheme 'q4f16'", "'q4f16_1'"),
    "an unknown target": (["--target", "cpu-x86-64-v5"], 2, "no target", "'cpu-x86-64-v4'"),
    "a context beyond the model": (["--context", 513], 2, "beyond the model's 512", "YaRN"),
    "a chunk beyond the context": (
        ["--context", 64, "--prefill-chunk", 65],
        2,
        "prefill chunk 65 is larger than the context of 64",
        "--prefill-chunk",
    ),
    "an unknown cache type": (["--kv-dtype", "float8"], 2, "no KV cache type 'float8'", "float16"),
    "a context of nothing": (["--context", 0], 2, "context", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled_is_refused(here, config_only, tmp_path, case):
    options, code, told, hint = REFUSED[case]
    ran = here("compile", config_only, "-o", tmp_path / "out", *options)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert hint in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_absent_model_is_told_by_its_path(here, tmp_path):
    ran = here("compile", tmp_path / "absent", "-o", tmp_path / "out")
    assert ran.code == 2
    assert str(tmp_path / "absent") in ran.err


@pytest.mark.parametrize("command", ["convert", "compile", "build"])
def test_an_artifact_is_no_model(here, compiled, tmp_path, command):
    ran = here(command, compiled[0], "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert "must be a model directory, but mlc-compile wrote it" in ran.err
    assert list(tmp_path.iterdir()) == []


SPOILED = {
    "a tokenizer cut short": ("tokenizer.json", lambda text: text[:100], "is not a JSON object"),
    "half a tokenizer": ("tokenizer_config.json", None, "tokenizer_config.json missing"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_damaged_tokenizer_does_not_pass_for_none(nano_checkpoint, tmp_path, case):
    name, spoil, told = SPOILED[case]
    model = Path(shutil.copytree(nano_checkpoint, tmp_path / "model"))
    if spoil is None:
        (model / name).unlink()
    else:
        (model / name).write_text(spoil((model / name).read_text()))
    with pytest.raises(CheckpointError, match=told):
        read_subject(model)


def test_a_model_without_a_tokenizer_has_no_tokenizer_files(config_only):
    subject = read_subject(config_only)
    assert (subject.tokenizer, subject.checkpoint) == ((), None)


def test_what_is_refused_is_refused_without_loading_the_compiler(nano_checkpoint, tmp_path):
    code = (
        "import sys\nfrom mlc_compile.cli.app import invoke\n"
        f"code = invoke(['build', {str(nano_checkpoint)!r}, '-t', 'cpu-x86-64-v2', '-o', "
        f"{str(tmp_path / 'out')!r}, '--activations', 'int8'])\n"
        "print(code, 'tvm' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "4 False\n"


def test_the_output_is_not_put_over_somebody_s_files(config_only, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="was not written by mlc-compile"):
        compile_model(config_only, find_target("cpu"), "q4f16_1", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_a_linker_nothing_is_begun(config_only, tmp_path, monkeypatch):
    monkeypatch.setattr(linker.shutil, "which", lambda _name: None)
    monkeypatch.setattr(linker.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(TargetError, match="no linker for cpu") as error:
        compile_model(config_only, find_target("cpu"), "q4f16_1", tmp_path / "out")
    assert error.value.exit_code == 4
    assert "pip install 'mlc_compile[cross]'" in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_float16_that_a_device_lacks_is_refused_and_the_scheme_named(config_only, tmp_path):
    row = find_target("cuda-sm80")
    lacking = msgspec.structs.replace(row.device, f16=False)
    plain = msgspec.structs.replace(row, device=lacking, quant="q4f32_1")
    with pytest.raises(TargetError, match="cuda-sm80 has no float16") as error:
        compile_model(config_only, plain, "q4f16_1", tmp_path / "out")
    assert error.value.exit_code == 4
    assert "--quant q4f32_1" in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_backend_without_an_emitter_is_refused(config_only, tmp_path, monkeypatch):
    monkeypatch.delitem(EMITTERS, "vulkan")
    with pytest.raises(TargetError, match="emits no vulkan libraries") as error:
        compile_model(config_only, find_target("vulkan"), "q4f32_1", tmp_path / "out")
    assert error.value.exit_code == 4


def test_without_a_cuda_compiler_nothing_is_begun(config_only, tmp_path, monkeypatch):
    monkeypatch.setattr("mlc_compile.emit.cuda.toolchain.FINDERS", ())
    with pytest.raises(TargetError, match="no CUDA compiler") as error:
        compile_model(config_only, find_target("cuda-sm80"), "q4f16_1", tmp_path / "out")
    assert error.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_over_the_device_s_limits_leaves_nothing(config_only, tmp_path):
    row = find_target("metal")
    small = msgspec.structs.replace(row.device, buffers=2)
    with pytest.raises(TargetError, match="the device allows 2") as error:
        compile_model(
            config_only, msgspec.structs.replace(row, device=small), "q4f16_1", tmp_path / "out"
        )
    assert error.value.exit_code == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAS_ZIG, reason="needs zig: pip install 'mlc_compile[cross]'")
def test_a_path_without_a_compiler_needs_zig(compiled):
    assert read_manifest(compiled[0], Manifest).linker == compiled[1]["linker"] == "zig"


@pytest.mark.parametrize(
    ("options", "context", "chunk"),
    [
        (Options(), 512, 512),  # the model's limit is below our default of 4096
        (Options(context=100), 100, 100),
        (Options(prefill_chunk=64), 512, 64),
        (Options(context=512, prefill_chunk=512), 512, 512),
    ],
)
def test_limits_default_to_what_the_model_can_do(config, options, context, chunk):
    limits = limits_for(config, options.context, options.prefill_chunk)
    assert (limits.context, limits.prefill_chunk) == (context, chunk)


@pytest.mark.parametrize(
    ("quant", "asked", "dtype"),
    [
        ("q4f16_1", None, "float16"),
        ("q4f32_1", None, "float32"),
        ("q4f16_1", "float32", "float32"),
        ("q0f32", "float16", "float16"),
        ("q4f16_1", "int8", "int8"),
    ],
)
def test_the_cache_is_as_precise_as_the_scheme_unless_asked(config, quant, asked, dtype):
    kv = choose_kv(config, find_target("cpu"), quant, Options(kv_dtype=asked))
    assert kv.dtype == dtype
    assert (kv.layers, kv.kv_heads, kv.head_dim) == (2, 2, 32)


def test_a_cache_of_tvm_s_is_never_int8(config):
    paged = [name for name in target_names() if find_target(name).kv == "tvm_paged"]
    assert {find_target(name).backend for name in paged} == {"cuda", "metal", "vulkan", "webgpu"}
    for name in paged:
        with pytest.raises(ConfigError, match=f"{name} must be float16 or float32, got int8") as e:
            choose_kv(config, find_target(name), "q4f32_1", Options(kv_dtype="int8"))
        assert e.value.exit_code == 2
        assert "int8 is for CPUs" in e.value.hint
