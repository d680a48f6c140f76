"""A site has one artifact, whole and for pages; what it tells the page is true."""

import json
import os

import msgspec
import pytest

from mlc_compile.artifact import Library, Versions
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.web.site import PAGE, read_page_manifest

MIB = 1 << 20


def told(site):
    """What the page reads."""
    return json.loads(site.resources["/artifact.json"].source)


def test_the_page_is_told_where_everything_is(site_of, artifact, package):
    site = site_of(artifact, package)
    about = told(site)
    assert about == json.loads(msgspec.json.encode(site.about))
    for name in (about["library"], about["web_llm"], f"{about['address']}resolve/main/lib.wasm"):
        assert name in site.resources
    assert about["nbytes"] == {"library": 15, "weights": 1_024_000, "rest": 4}


def test_every_file_of_the_page_has_an_address(site_of, artifact, package):
    site = site_of(artifact, package)
    files = {path.name for path in PAGE.iterdir()}
    assert {"index.html", "app.js", "style.css"} <= files
    assert {f"/{name}" for name in files - {"index.html"}} | {"/"} <= set(site.resources)


def test_another_build_has_other_addresses(site_of, make_artifact, package):
    first = site_of(make_artifact(), package).about
    again = site_of(make_artifact(), package).about
    other = site_of(make_artifact(activation_bytes=101), package).about
    assert first.address == again.address != other.address
    assert first.address.rsplit("/", 2)[0] == other.address.rsplit("/", 2)[0]


@pytest.mark.parametrize("model", ["a b", "../x", "m%2f", "模型", "a'b\"<c>", "#?&"])
def test_a_model_s_name_is_an_address_that_needs_no_quotes(site_of, make_artifact, package, model):
    site = site_of(make_artifact(model=model), package)
    assert told(site)["model"] == model
    address = told(site)["address"]
    assert set(address) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")
    assert not {".", ".."} & set(address.split("/"))


@pytest.mark.parametrize(("dtype", "features"), [("float16", ("shader-f16",)), ("float32", ())])
def test_float16_anywhere_needs_its_feature(site_of, make_artifact, package, dtype, features):
    assert site_of(make_artifact(dtype=dtype), package).about.features == features


@pytest.mark.parametrize(
    ("largest", "binding", "buffer"),
    [
        (128 * MIB, 128 * MIB, 256 * MIB),
        (128 * MIB + 4, 1024 * MIB, 256 * MIB),  # web-llm asks for one or the other
        (300 * MIB, 1024 * MIB, 1024 * MIB),
    ],
)
def test_large_weights_need_large_bindings(
    site_of, make_artifact, package, largest, binding, buffer
):
    limits = site_of(make_artifact(largest=largest), package).about.limits
    assert limits["maxStorageBufferBindingSize"] == binding
    assert limits["maxBufferSize"] == buffer


@pytest.mark.parametrize(
    ("target", "threads"), [("webgpu", 256), ("webgpu-desktop", 1024), ("no-such-preset", 256)]
)
def test_kernels_need_the_threads_of_their_target(site_of, make_artifact, package, target, threads):
    limits = site_of(make_artifact(target=target), package).about.limits
    assert limits["maxComputeInvocationsPerWorkgroup"] == threads


def test_another_target_is_named(make_artifact):
    versions = Versions(mlc_compile="0", tvm="1", tvm_ffi="2")
    with pytest.raises(TargetError, match="is for target 'cuda-sm90', which no browser runs"):
        read_page_manifest(make_artifact(target="cuda-sm90", versions=versions))


def test_a_library_without_weights_is_refused(make_artifact):
    with pytest.raises(ConfigError, match="a library without weights"):
        read_page_manifest(make_artifact(weights_digest=None))


def test_several_libraries_are_refused(site_of, make_artifact, package):
    two = tuple(Library(path=name, requires=()) for name in ("a.wasm", "b.wasm"))
    with pytest.raises(DamageError, match=r"but has a\.wasm, b\.wasm"):
        site_of(make_artifact(libraries=two), package)


def test_a_changed_and_a_missing_file_are_damage(site_of, artifact, package):
    shard = artifact / "params_shard_0.bin"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamageError, match=r"params_shard_0\.bin is not as mlc-compile wrote it"):
        site_of(artifact, package)
    shard.unlink()
    with pytest.raises(DamageError, match=r"params_shard_0\.bin is missing"):
        site_of(artifact, package)


def test_a_link_out_of_the_artifact_is_damage(site_of, artifact, package, tmp_path):
    """Even to the right bytes: what is there later, nobody knows."""
    shard, outside = artifact / "params_shard_0.bin", tmp_path / "outside.bin"
    shard.rename(outside)
    shard.symlink_to(outside)
    with pytest.raises(DamageError, match="leads out of the artifact"):
        site_of(artifact, package)
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(DamageError, match=r"leads out of the artifact|is missing"):
        site_of(artifact, package)


def test_an_artifact_may_itself_be_a_link(site_of, artifact, package, tmp_path):
    link = tmp_path / "link"
    os.symlink(artifact, link)
    assert site_of(link, package).about.model == "toy"
