"""Directories appear whole or not at all, and a manifest that lies is found."""

import contextlib
import errno
import json
import os
import subprocess
import sys

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
    staged,
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


def write(directory, text="new", failure=None):
    """Make a directory as ours do, or fail before it is done."""
    with staged(directory) as scratch:
        write_manifest(scratch, WEIGHTS)
        (scratch / "file").write_text(text)
        if failure is not None:
            raise failure


def seen(tmp_path):
    return sorted(p.name for p in tmp_path.iterdir())


# ---- staged -----------------------------------------------------------------------------


def test_a_directory_appears_with_its_parents_when_the_block_ends(tmp_path):
    out = tmp_path / "a" / "b"
    with staged(out) as scratch:
        (scratch / "file").write_text("new")
        assert not out.exists()
    assert (out / "file").read_text() == "new"
    assert seen(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError, SystemExit])
@pytest.mark.parametrize("before", [True, False])
def test_a_failure_leaves_what_was_there(tmp_path, failure, before):
    out = tmp_path / "out"
    if before:
        write(out, "old")
    with pytest.raises(failure):
        write(out, "half", failure)
    assert seen(tmp_path) == (["out"] if before else [])
    if before:
        assert (out / "file").read_text() == "old"


def test_our_own_directory_is_replaced_whole(tmp_path):
    out = tmp_path / "out"
    write(out, "old")
    (out / "stale").write_text("")
    write(out, "new")
    assert seen(out) == ["file", MANIFEST]
    assert (out / "file").read_text() == "new"
    assert seen(tmp_path) == ["out"]


def test_an_empty_directory_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "new"


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_we_did_not_write_is_never_replaced(tmp_path, kind):
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
    else:
        out.write_text("years of work")
    with pytest.raises(ConfigError, match="was not written by mlc-compile") as error:
        write(out)
    assert error.value.hint
    mine = out / "thesis.tex" if kind == "directory" else out
    assert mine.read_text() == "years of work"
    assert seen(tmp_path) == ["out"]


@pytest.fixture
def dead():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(path):
    path.mkdir()
    write_manifest(path, WEIGHTS)
    (path / "file").write_text("stale")


@pytest.mark.parametrize("kind", ["partial", "retired"])
def test_what_a_killed_run_left_is_cleared(tmp_path, dead, kind):
    write(tmp_path / "out", "old")
    leave(tmp_path / f".out.{dead}.{kind}")
    leave(tmp_path / f".out.{os.getpid()}.{kind}")
    write(tmp_path / "out")
    assert seen(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "new"


def test_what_a_living_run_or_another_directory_has_beside_it_stays(tmp_path, dead):
    others = [f".out.{os.getppid()}.partial", f".out2.{dead}.partial", f".out.{dead}.partial.txt"]
    for name in others:
        (tmp_path / name).mkdir()
    write(tmp_path / "out")
    assert seen(tmp_path) == sorted([*others, "out"])


@pytest.mark.parametrize("failure", [None, RuntimeError])
def test_a_run_killed_between_the_renames_has_lost_nothing(tmp_path, dead, failure):
    leave(tmp_path / f".out.{dead}.retired")
    with pytest.raises(failure) if failure else contextlib.nullcontext():
        write(tmp_path / "out", failure=failure)
    assert seen(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == ("stale" if failure else "new")


def test_a_failure_removes_the_parents_that_it_made_and_no_others(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(RuntimeError):
        write(tmp_path / "mine" / "a" / "b" / "out", failure=RuntimeError)
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_parent_that_somebody_uses_by_now_stays(tmp_path):
    def use_and_fail():
        with staged(tmp_path / "a" / "b" / "out"):
            (tmp_path / "a" / "note").write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        use_and_fail()
    assert seen(tmp_path / "a") == ["note"]


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_errors_speak_of_the_directory_and_not_of_the_scratch(tmp_path, monkeypatch, call):
    real = getattr(type(tmp_path), call)

    def refuse(self, *arguments, **options):
        if self.name.endswith(".partial"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(type(tmp_path), call, refuse)
    with pytest.raises(OSError, match="Read-only") as error:
        write(tmp_path / "out")
    assert error.value.filename == str(tmp_path / "out")


def test_an_error_about_a_copy_names_where_it_was_to_go(tmp_path):
    with pytest.raises(OSError, match="Errno 28") as error, staged(tmp_path / "out") as scratch:
        raise OSError(28, "full", "source", None, str(scratch / "copy"))
    assert error.value.filename == "source"
    assert error.value.filename2 == str(tmp_path / "out" / "copy")


def test_an_error_about_a_file_inside_names_the_place_where_it_would_be(tmp_path):
    with pytest.raises(FileNotFoundError) as error, staged(tmp_path / "out") as scratch:
        (scratch / "absent").read_bytes()
    assert error.value.filename == str(tmp_path / "out" / "absent")


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt("No space left")]
)
def test_a_rename_that_fails_puts_the_old_directory_back(tmp_path, monkeypatch, failure):
    out = tmp_path / "out"
    write(out, "old")
    rename = type(out).rename

    def failing(self, target):
        if self.name.endswith(".partial"):
            raise failure
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", failing)
    with pytest.raises(type(failure), match="No space left"):
        write(out, "new")
    assert (out / "file").read_text() == "old"
    assert seen(tmp_path) == ["out"]


# ---- manifests --------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [WEIGHTS, ARTIFACT])
def test_a_manifest_is_read_as_it_was_written(tmp_path, manifest):
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path, type(manifest)) == manifest
    first = (tmp_path / MANIFEST).read_bytes()
    write_manifest(tmp_path, read_manifest(tmp_path, type(manifest)))
    assert (tmp_path / MANIFEST).read_bytes() == first


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


def test_a_symbolic_link_is_written_through(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with staged(link) as scratch:
        (scratch / "file").write_text("new")
    assert link.is_symlink()
    assert (real / "file").read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_another_program_s_manifest_does_not_make_a_directory_ours(tmp_path):
    out = tmp_path / "site"
    out.mkdir()
    (out / MANIFEST).write_text('{"name": "a web app", "icons": []}')
    with pytest.raises(ConfigError, match="was not written by mlc-compile"), staged(out):
        pytest.fail("the directory would have been replaced")
    assert (out / MANIFEST).is_file()
