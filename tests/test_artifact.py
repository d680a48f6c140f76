"""What is written is read as it was, and a manifest that lies is found."""

import json

import msgspec
import pytest

from mlc_compile.artifact import (
    MANIFEST,
    Check,
    File,
    FlatKV,
    Library,
    Limits,
    Manifest,
    Part,
    PlannedTensor,
    Versions,
    WeightPlan,
    WeightsManifest,
    list_files,
    read_manifest,
    write_manifest,
)
from mlc_compile.errors import ConfigError, DamageError

PART = Part(name="w.weight", dtype="float32", shape=(2, 3), offset=0, nbytes=24)
PLAN = WeightPlan(
    tensors=(PlannedTensor(name="w", sources=("w.weight",), layout="wide", parts=(PART,)),),
    nbytes=24,
)
WEIGHTS = WeightsManifest(
    model="m", quant="q0f32", mlc_compile="0", tied=True, kept=("w: why",), digest="d", files=()
)
ARTIFACT = Manifest(
    model="m",
    quant="q0f32",
    target="cpu",
    triple="x86_64-unknown-linux-gnu",
    linker="cc",
    versions=Versions(mlc_compile="0", tvm="1", tvm_ffi="2"),
    libraries=(Library(path="lib.so", requires=("avx2",), priority=3),),
    limits=Limits(context=64, prefill_chunk=16),
    kv=FlatKV(layers=1, kv_heads=2, head_dim=4, page=16, dtype="float16"),
    vocab_size=8,
    plan=PLAN,
    plan_digest=PLAN.digest(),
    activation_bytes=100,
    files=(File(path="lib.so", nbytes=1, sha256="0"),),
    check=Check(status="pass", max_abs_error=1e-6, bound=1e-3),
)


@pytest.mark.parametrize("manifest", [WEIGHTS, ARTIFACT])
def test_a_manifest_is_read_as_it_was_written(tmp_path, manifest):
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path, type(manifest)) == manifest
    first = (tmp_path / MANIFEST).read_bytes()
    write_manifest(tmp_path, read_manifest(tmp_path, type(manifest)))
    assert (tmp_path / MANIFEST).read_bytes() == first


def test_a_cache_of_floats_is_as_libraries_of_the_first_format_take_it():
    kv = ARTIFACT.kv
    fields = {"layers": 1, "kv_heads": 2, "head_dim": 4, "page": 16, "dtype": "float16"}
    assert msgspec.to_builtins(kv) == fields
    assert kv.k_shape(5) == (1, 5, 2, 4, 16)
    assert kv.v_shape(5) == (1, 5, 2, 16, 4)
    assert kv.nbytes(65) == 2 * 5 * 2 * (2 * 4 * 16)


@pytest.mark.parametrize("head_dim", [4, 10, 128])
def test_an_int8_cache_takes_a_byte_a_number_and_a_float32_a_row(head_dim):
    int8 = msgspec.structs.replace(ARTIFACT.kv, head_dim=head_dim, dtype="int8")
    assert int8.k_shape(5) == (1, 5, 2, head_dim + 8, 16)
    assert int8.v_shape(5) == (1, 5, 2, 16, head_dim)
    rows = 2 * 5 * 2 * 16  # keys and values of each slot
    assert int8.nbytes(65) == rows * (head_dim + 4)


def test_one_kind_is_not_taken_for_the_other(tmp_path):
    write_manifest(tmp_path, WEIGHTS)
    with pytest.raises(ConfigError, match="must be an artifact, but is of kind 'weights'"):
        read_manifest(tmp_path, Manifest)
    write_manifest(tmp_path, ARTIFACT)
    with pytest.raises(ConfigError, match="must be a weights directory, but is of kind 'artifact'"):
        read_manifest(tmp_path, WeightsManifest)


def test_what_is_no_directory_of_ours_is_told_by_what_it_is(tmp_path):
    with pytest.raises(ConfigError, match="absent is not a directory"):
        read_manifest(tmp_path / "absent", Manifest)
    with pytest.raises(ConfigError, match=r"holds no manifest\.json"):
        read_manifest(tmp_path, Manifest)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a model checkpoint") as error:
        read_manifest(tmp_path, Manifest)
    assert "mlc-compile build" in error.value.hint


def edited(**fields):
    return json.dumps({**json.loads(msgspec.json.encode(ARTIFACT)), **fields}).encode()


DAMAGE = {
    "empty": b"",
    "cut short": msgspec.json.encode(ARTIFACT)[:-20],
    "not text": b"\xff\xfe\x00",
    "not an object": b"[1, 2]",
    "a number": b"7",
    "without kind": b'{"format": 1}',
    "a field of another type": edited(vocab_size="many"),
    "an unknown field": edited(surprise=1),
    "another format": edited(format=2),
    "a field missing": json.dumps(
        {k: v for k, v in json.loads(msgspec.json.encode(ARTIFACT)).items() if k != "plan"}
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_is_damage(tmp_path, damage):
    (tmp_path / MANIFEST).write_bytes(DAMAGE[damage])
    with pytest.raises(DamageError, match=r"manifest\.json") as error:
        read_manifest(tmp_path, Manifest)
    assert error.value.hint


def test_listed_files_are_sorted_and_leave_out_manifest_and_log(tmp_path):
    for name in ("z", "a", "sub/b", MANIFEST, "build-log.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = list_files(tmp_path)
    assert [f.path for f in files] == ["a", "sub/b", "z"]
    assert files[0].nbytes == 1
    assert files[0].sha256.startswith("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785")


def test_equal_plans_have_equal_digests_and_any_change_shows():
    again = msgspec.json.decode(msgspec.json.encode(PLAN), type=WeightPlan)
    assert again.digest() == PLAN.digest()
    part = msgspec.structs.replace(PART, offset=64)
    tensor = msgspec.structs.replace(PLAN.tensors[0], parts=(part,))
    assert WeightPlan(tensors=(tensor,), nbytes=24).digest() != PLAN.digest()


@pytest.mark.parametrize(
    ("context", "pages", "nbytes"), [(1, 1, 512), (16, 1, 512), (17, 2, 1024), (64, 4, 2048)]
)
def test_the_cache_takes_whole_pages(context, pages, nbytes):
    assert ARTIFACT.kv.pages(context) == pages
    assert ARTIFACT.kv.nbytes(context) == nbytes


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (Check(status="not run", reason="no device"), "not run: no device"),
        (Check(status="not run"), "not run"),
        (ARTIFACT.check, "pass: largest error 1e-06 of 0.001 allowed"),
        (
            msgspec.structs.replace(ARTIFACT.check, reason="b.so was not run"),
            "pass: largest error 1e-06 of 0.001 allowed; b.so was not run",
        ),
    ],
)
def test_a_check_is_told_in_a_line(check, told):
    assert check.told() == told


def test_one_changed_number_in_a_manifest_is_damage(nano_artifact, tmp_path):
    raw = json.loads((nano_artifact / MANIFEST).read_text())
    raw["kv"]["page"] = 64
    (tmp_path / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(DamageError, match="not as mlc-compile wrote it"):
        read_manifest(tmp_path, Manifest)
