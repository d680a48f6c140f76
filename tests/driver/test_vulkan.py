"""`build` for Vulkan: a library each for this system and Android, and what a GPU must offer."""

import importlib.util
import json
from pathlib import Path

import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.emit.vulkan.payload import LAYOUT
from mlc_compile.target import find_target

ROWS = ("vulkan", "vulkan-android")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None or importlib.util.find_spec("lief") is None,
        reason="needs zig and lief: pip install 'mlc_compile[cross]'",
    ),
]


@pytest.fixture(scope="module")
def built(cli, nano_checkpoint, tmp_path_factory):
    """Of each row its directory and what the command told of it, made by one command."""
    out = tmp_path_factory.mktemp("vulkan")
    ran = cli("build", nano_checkpoint, "--target", ",".join(ROWS), "-o", out, "--json")
    assert ran.code == 0, ran.err
    return {told["target"]: (Path(told["directory"]), told) for told in ran.json["artifacts"]}


@pytest.mark.parametrize(("name", "arch"), [("vulkan", "x86_64"), ("vulkan-android", "aarch64")])
def test_each_target_has_a_library_for_its_host(built, name, arch):
    manifest = read_manifest(built[name][0], Manifest)
    (library,) = manifest.libraries
    assert (library.linked.format, library.linked.arch) == ("ELF", arch)
    assert (manifest.backend, manifest.device_compiler) == ("vulkan", "")


@pytest.mark.parametrize("name", ROWS)
def test_the_manifest_says_what_a_device_must_offer_within_the_row_s_limits(built, name):
    needs = read_manifest(built[name][0], Manifest).libraries[0].device
    device = find_target(name).device
    assert needs.layout == LAYOUT
    assert {"Float16", "Shader", "StorageBuffer16BitAccess"} == set(needs.capabilities)
    assert 0 < needs.threads <= device.threads
    assert 0 < needs.shared_bytes <= device.shared_bytes
    assert 0 < needs.buffers <= device.buffers
    assert max(needs.local_size) <= needs.threads


def test_the_report_tells_what_every_kernel_takes(built):
    directory, _ = built["vulkan"]
    report = json.loads((directory / "report.json").read_text())
    needs = read_manifest(directory, Manifest).libraries[0].device
    shaders = report["shaders"]
    assert [one["kernel"] for one in shaders] == sorted(one["kernel"] for one in shaders)
    assert max(one["shared_bytes"] for one in shaders) == needs.shared_bytes
    assert report["resources"] == []


def test_the_proof_is_replayed_where_there_is_a_device_and_never_on_a_foreign_host(built):
    assert built["vulkan"][1]["check"]["status"] in {"pass", "not run"}
    foreign = built["vulkan-android"][1]["check"]
    assert foreign["status"] == "not run"
    assert "aarch64 Android" in foreign["reason"]
