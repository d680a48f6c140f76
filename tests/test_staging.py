"""Directories appear whole or not at all."""

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from mlc_compile.artifact import MANIFEST, WeightsManifest, write_manifest
from mlc_compile.errors import ConfigError
from mlc_compile.staging import staged

WEIGHTS = WeightsManifest(
    model="m", quant="q0f32", mlc_compile="0", tied=True, kept=("w: why",), digest="d", files=()
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
