"""A small artifact for pages, made by hand, a stand-in of web-llm, and a server that runs."""

import json
import threading
from pathlib import Path

import pytest

from mlc_compile.artifact import (
    Check,
    FlatKV,
    Library,
    Limits,
    Manifest,
    Part,
    PlannedTensor,
    Versions,
    WeightPlan,
    list_files,
    write_manifest,
)
from mlc_compile.cache import Stamps
from mlc_compile.web.server import open_server
from mlc_compile.web.site import open_site, read_page_manifest
from mlc_compile.web.web_llm import PACKAGE, VERSION, find_script

SHARD = bytes(range(256)) * 4000  # larger than what a socket takes at once
CONTENTS = {
    "lib.wasm": b"\0asm not really",
    "params_shard_0.bin": SHARD,
    "tensor-cache.json": b"{}",
    "mlc-chat-config.json": b"{}",
    "tokenizer.json": b"{}",
}


def write_artifact(directory: Path, dtype: str = "float32", largest: int = 24, **fields) -> Path:
    """A sealed artifact that a page could ask for; `fields` are of its manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        (directory / name).write_bytes(content)
    part = Part(name="w.weight", dtype=dtype, shape=(largest,), offset=0, nbytes=largest)
    tensor = PlannedTensor(name="w", sources=("w.weight",), layout="plain", parts=(part,))
    plan = WeightPlan(tensors=(tensor,), nbytes=largest, sharded=True)
    whole = {
        "model": "toy",
        "quant": "q4f32_1",
        "target": "webgpu",
        "backend": "webgpu",
        "triple": "wasm32-unknown-unknown-wasm",
        "linker": "zig",
        "versions": Versions(mlc_compile="0", tvm="1", tvm_ffi="2", web_llm=VERSION),
        "libraries": (Library(path="lib.wasm", requires=()),),
        "limits": Limits(context=1024, prefill_chunk=16),
        "kv": FlatKV(layers=1, kv_heads=2, head_dim=4, page=16, dtype=dtype),
        "vocab_size": 8,
        "plan": plan,
        "plan_digest": plan.digest(),
        "activation_bytes": 100,
        "weights_digest": "d",
        "files": list_files(directory),
        "check": Check(status="not run"),
        **fields,
    }
    write_manifest(directory, Manifest(**whole))
    return directory


def write_package(directory: Path, script: str = "export {};", **about: str) -> Path:
    """A directory that says that it is web-llm's package."""
    (directory / "lib").mkdir(parents=True, exist_ok=True)
    (directory / "lib" / "index.js").write_text(script)
    told = {"name": PACKAGE, "version": VERSION, **about}
    (directory / "package.json").write_text(json.dumps(told))
    return directory


@pytest.fixture
def artifact(tmp_path):
    """A small artifact."""
    return write_artifact(tmp_path / "artifact")


@pytest.fixture
def make_artifact(tmp_path):
    """`make_artifact(target="cpu")`: a small artifact whose manifest says so."""
    return lambda **fields: write_artifact(tmp_path / "made", **fields)


@pytest.fixture
def package(tmp_path):
    """A stand-in of web-llm's package."""
    return write_package(tmp_path / "package")


@pytest.fixture
def make_package(tmp_path):
    """`make_package(script, version="0.1")`: another one."""
    return lambda *given, **about: write_package(tmp_path / "other", *given, **about)


@pytest.fixture
def site_of(tmp_path):
    """`site_of(artifact, package)`: its site; `script` instead of a package, where it is found."""

    def make(artifact, package, script=None):
        manifest = read_page_manifest(artifact)
        script = script or find_script(package, manifest.versions.web_llm, tmp_path, print)
        return open_site(artifact, manifest, script, Stamps())

    return make


@pytest.fixture
def running():
    """`running(site)`: a server that answers until the test ends."""
    servers = []

    def start(site, host="127.0.0.1"):
        server = open_server(site, host, 0)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(running, site_of, artifact, package):
    """A server of the small artifact."""
    return running(site_of(artifact, package))


@pytest.fixture
def shard(server):
    """The address of the largest file."""
    return f"{server.site.about.address}resolve/main/params_shard_0.bin"
