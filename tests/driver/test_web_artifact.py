"""An artifact for browsers: what web-llm fetches lies in one directory, from any server."""

import importlib.util
import json

import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.checkpoint import TensorCache
from mlc_compile.emit.wasm.abi import WEB_LLM
from mlc_compile.tvm_version import PINS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
    reason="needs zig and lief: pip install 'mlc_compile[cross]'",
)


@pytest.fixture(scope="module")
def build(cli, nano_checkpoint, tmp_path_factory):
    """`build(*options)`: the nano model for browsers, with one cache; what the command said."""
    out, cache = tmp_path_factory.mktemp("web"), tmp_path_factory.mktemp("cache")

    def run(*options):
        asked = ["--target", "webgpu", "-o", out, "--cache-dir", cache, *options]
        ran = cli("build", nano_checkpoint, *asked)
        assert ran.code == 0, ran.err
        return ran

    run.directory = out / f"{nano_checkpoint.name}-q4f32_1" / "webgpu"
    return run


@pytest.fixture(scope="module")
def artifact(build):
    """The directory."""
    build()
    return build.directory


def test_all_that_web_llm_fetches_is_there(artifact):
    config = json.loads((artifact / "mlc-chat-config.json").read_bytes())
    index = json.loads((artifact / "tensor-cache.json").read_bytes())
    fetched = [*config["tokenizer_files"], *(shard["dataPath"] for shard in index["records"])]
    assert "tokenizer.json" in fetched
    assert [name for name in ("lib.wasm", *fetched) if not (artifact / name).is_file()] == []
    assert not (artifact / "weights.bin").exists()  # the shards are the weights


def test_tensors_are_the_parameters_in_their_order(artifact):
    plan = read_manifest(artifact, Manifest).plan
    cache = TensorCache(artifact, verify=False)
    parts = [part for tensor in plan.tensors for part in tensor.parts]
    assert cache.names == tuple(part.name for part in parts)
    assert all(cache.read(part.name).shape == part.shape for part in parts)


def test_manifest_says_whose_calls_the_library_answers(artifact):
    manifest = read_manifest(artifact, Manifest)
    assert manifest.versions.web_llm == WEB_LLM
    assert manifest.versions.tvm == PINS["apache-tvm"]
    (library,) = manifest.libraries
    assert library.linked.format == "WebAssembly"
    assert manifest.check.status == "not run"
    metadata = (artifact / "lib.wasm").read_bytes()
    told = b'"kv_state_kind":"kv_cache","versions":{"mlc_compile":'
    assert told in metadata
    assert b'"web_llm":"%s"' % WEB_LLM.encode() in metadata


def test_a_second_build_writes_nothing(artifact, build):
    before = {path.name: path.stat().st_mtime_ns for path in artifact.iterdir()}
    assert "nothing to write" in build().err
    assert {path.name: path.stat().st_mtime_ns for path in artifact.iterdir()} == before


def test_a_damaged_shard_comes_back_from_the_cache(artifact, build):
    shard = artifact / "params_shard_0.bin"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    build("--locked")
    assert shard.read_bytes() == content
