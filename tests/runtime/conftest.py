"""A small artifact that the checks accept, its library that of toy_library.py."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
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
    read_manifest,
    write_manifest,
)
from mlc_compile.target import host_target
from mlc_compile.tvm_version import PINS

VOCAB, HIDDEN, CONTEXT, CHUNK = 40, 8, 24, 5

Change = Callable[..., Path]


@pytest.fixture(scope="session")
def toy_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library of the toy model, its cache untouched."""
    return compiled_toy(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def choosing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with functions that choose a token."""
    return compiled_toy(tmp_path_factory.mktemp("library"), "choosing")


def compiled_toy(directory: Path, *options: str) -> Path:
    # Apart, since this process may already run TVM without its compiler.
    program, path = Path(__file__).with_name("toy_library.py"), directory / "lib.so"
    asked = [path, str(VOCAB), str(HIDDEN), *options]
    subprocess.run([sys.executable, program, *asked], check=True)
    return path


@pytest.fixture
def toy_artifact(tmp_path: Path, toy_library: Path) -> Path:
    """A directory that passes every check and runs."""
    directory = tmp_path / "toy"
    directory.mkdir()
    (directory / "lib.so").write_bytes(toy_library.read_bytes())
    random = np.random.default_rng(7)
    table = random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    head = random.standard_normal((HIDDEN, VOCAB)).astype(np.float32)
    (directory / "weights.bin").write_bytes(table.tobytes() + head.tobytes())
    tensors = (
        _planned("model.embed_tokens.weight", table.shape, 0),
        _planned("lm_head.weight", head.shape, table.nbytes),
    )
    plan = WeightPlan(tensors=tensors, nbytes=table.nbytes + head.nbytes)
    manifest = Manifest(
        model="toy",
        quant="q0f32",
        target="cpu",
        triple=host_target().triple,
        linker="cc",
        versions=Versions(mlc_compile="0", tvm=PINS["apache-tvm"], tvm_ffi=PINS["apache-tvm-ffi"]),
        libraries=(Library(path="lib.so", requires=()),),
        limits=Limits(context=CONTEXT, prefill_chunk=CHUNK),
        kv=FlatKV(layers=1, kv_heads=1, head_dim=2, page=16, dtype="float32"),
        vocab_size=VOCAB,
        plan=plan,
        plan_digest=plan.digest(),
        activation_bytes=0,
        weights_digest="0",
        files=list_files(directory),
        check=Check(status="not run"),
    )
    write_manifest(directory, manifest)
    return directory


@pytest.fixture
def change(toy_artifact: Path) -> Change:
    """Rewrite fields of the toy's manifest."""

    def apply(**fields: object) -> Path:
        manifest = read_manifest(toy_artifact, Manifest)
        write_manifest(toy_artifact, msgspec.structs.replace(manifest, **fields))
        return toy_artifact

    return apply


def _planned(name: str, shape: tuple[int, ...], offset: int) -> PlannedTensor:
    nbytes = 4 * int(np.prod(shape))
    part = Part(name=name, dtype="float32", shape=shape, offset=offset, nbytes=nbytes)
    return PlannedTensor(name=name, sources=(name,), layout="rows", parts=(part,))
