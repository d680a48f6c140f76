"""Directories and files appear whole or not at all."""

import contextlib
import errno
import fcntl
import os
import stat

import pytest

from mlc_compile.artifact import MANIFEST, WeightsManifest, write_manifest
from mlc_compile.errors import ConfigError
from mlc_compile.staging import directory as module
from mlc_compile.staging import file as file_module
from mlc_compile.staging import replaced, staged, sync
from mlc_compile.staging.directory import LOCK, NEW, OLD
from mlc_compile.staging.lock import acquire, release

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


def leave(tmp_path, kind, name="out", digit="0"):
    """The room of a run that was killed."""
    directory = tmp_path / f".{name}.{digit * 32}.partial" / kind
    directory.mkdir(parents=True)
    write_manifest(directory, WEIGHTS)
    (directory / "file").write_text("stale")
    return directory.parent


@pytest.mark.parametrize("kind", [NEW, OLD])
def test_what_a_killed_run_left_is_cleared(tmp_path, kind):
    write(tmp_path / "out", "old")
    leave(tmp_path, kind)
    write(tmp_path / "out")
    assert seen(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "new"


def test_what_a_living_run_or_another_directory_has_beside_it_stays(tmp_path):
    """A lock tells the living: another host's processes have numbers of their own."""
    living, dead = leave(tmp_path, NEW, digit="1"), leave(tmp_path, NEW, digit="2")
    others = [leave(tmp_path, NEW, "out2").name, ".out.4321.partial"]
    (tmp_path / others[1]).mkdir()
    handle = acquire(living / LOCK)
    write(tmp_path / "out")
    assert seen(tmp_path) == sorted([*others, living.name, "out"])
    assert not dead.exists()
    release(handle)


def test_two_that_write_at_once_do_not_meet(tmp_path):
    with staged(tmp_path / "out") as one:
        (one / "file").write_text("one")
        write(tmp_path / "out", "other")
        assert (one / "file").read_text() == "one"
        write_manifest(one, WEIGHTS)
    assert seen(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "one"


def refuse(number):
    def fail(*_args, **_options):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL], ids=errno.errorcode.get
)
def test_where_there_are_no_locks_it_is_written_and_nothing_cleared(tmp_path, monkeypatch, number):
    monkeypatch.setattr(fcntl, "flock", refuse(number))
    left = leave(tmp_path, NEW)
    write(tmp_path / "out")
    assert seen(tmp_path) == [left.name, "out"]


def test_a_lock_that_fails_for_another_reason_is_an_error(tmp_path, monkeypatch):
    """Without it, another run would take this one for dead."""
    monkeypatch.setattr(fcntl, "flock", refuse(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write(tmp_path / "out")
    assert seen(tmp_path) == []


def test_a_room_that_cannot_be_cleared_is_not_kept_locked(tmp_path, monkeypatch):
    leave(tmp_path, NEW)
    monkeypatch.setattr(module, "_clear", refuse(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write(tmp_path / "out")
    handles = [acquire(path, wait=False) for path in tmp_path.glob(f".out.*/{LOCK}")]
    assert len(handles) == 2
    assert None not in handles
    for handle in handles:
        release(handle)


@pytest.mark.parametrize("failure", [None, RuntimeError])
def test_a_run_killed_between_the_renames_has_lost_nothing(tmp_path, failure):
    leave(tmp_path, OLD)
    with pytest.raises(failure) if failure else contextlib.nullcontext():
        write(tmp_path / "out", failure=failure)
    assert seen(tmp_path) == ["out"]
    assert (tmp_path / "out" / "file").read_text() == ("stale" if failure else "new")


def test_all_of_it_is_on_the_disk_before_it_appears(tmp_path, monkeypatch):
    synced = []

    def sync(path):
        synced.append((path.name, (tmp_path / "out").exists()))

    monkeypatch.setattr(module, "sync", sync)
    with staged(tmp_path / "out") as scratch:
        (scratch / "deep").mkdir()
        (scratch / "deep" / "file").write_text("new")
    names = [(name, False) for name in ("deep", "file", NEW)]
    assert synced == [*names, (tmp_path.name, True)]


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


@pytest.mark.parametrize(
    ("call", "suffix"), [("mkdir", ".partial"), ("mkdir", NEW), ("rename", NEW)]
)
def test_errors_speak_of_the_directory_and_not_of_the_scratch(tmp_path, monkeypatch, call, suffix):
    real = getattr(type(tmp_path), call)

    def refuse(self, *arguments, **options):
        if self.name.endswith(suffix):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(type(tmp_path), call, refuse)
    with pytest.raises(OSError, match="Read-only") as error:
        write(tmp_path / "out")
    assert error.value.filename == str(tmp_path / "out")


def test_an_error_about_a_copy_names_where_it_was_to_go(tmp_path):
    with pytest.raises(OSError, match="full") as error, staged(tmp_path / "out") as scratch:
        raise OSError(errno.ENOSPC, "full", "source", None, str(scratch / "copy"))
    assert error.value.filename == "source"
    assert error.value.filename2 == str(tmp_path / "out" / "copy")


def test_an_error_about_a_file_inside_names_the_place_where_it_would_be(tmp_path):
    with pytest.raises(FileNotFoundError) as error, staged(tmp_path / "out") as scratch:
        (scratch / "absent").read_bytes()
    assert error.value.filename == str(tmp_path / "out" / "absent")


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt("No space left")],
)
def test_a_rename_that_fails_puts_the_old_directory_back(tmp_path, monkeypatch, failure):
    out = tmp_path / "out"
    write(out, "old")
    rename = type(out).rename

    def failing(self, target):
        if self.name == NEW:
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


# ---- files -------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [False, True])
def test_a_file_is_replaced_once_the_disk_has_the_new_one(tmp_path, monkeypatch, link):
    place, path, synced = tmp_path / "real" / "file", tmp_path / "path", []
    place.parent.mkdir()
    place.write_text("old")
    if link:
        path.symlink_to(place)
    fsync = os.fsync

    def look(handle):
        synced.append(place.read_text())
        fsync(handle)

    monkeypatch.setattr(file_module.os, "fsync", look)
    with replaced(path if link else place) as file:
        file.write(b"new")
    assert synced == ["old", "new"]  # the file, then the name
    assert seen(place.parent) == ["file"]
    assert path.is_symlink() == link


@pytest.mark.parametrize(
    "failure", [RuntimeError(), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()]
)
def test_a_failure_leaves_the_old_file(tmp_path, failure):
    path = tmp_path / "file"
    path.write_text("old")

    def write_half():
        with replaced(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(type(failure)) as error:
        write_half()
    assert (path.read_text(), seen(tmp_path)) == ("old", ["file"])
    if isinstance(failure, OSError):
        assert error.value.filename == str(path)


def test_an_error_about_another_file_names_that(tmp_path):
    with pytest.raises(FileNotFoundError) as error, replaced(tmp_path / "file"):
        (tmp_path / "source").read_bytes()
    assert error.value.filename == str(tmp_path / "source")


@pytest.fixture
def fsync(monkeypatch):
    """`fsync(kind, number)`: from now on fails with `number` where `kind(mode)` is true."""

    def fail(kind, number):
        def look(handle):
            if kind(os.fstat(handle).st_mode):
                refuse(number)()

        monkeypatch.setattr(file_module.os, "fsync", look)

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_where_no_directories_are_synced_all_is_written(tmp_path, fsync, number):
    fsync(stat.S_ISDIR, number)
    write(tmp_path / "out")
    with replaced(tmp_path / "file") as file:
        file.write(b"new")
    sync(tmp_path)
    assert seen(tmp_path) == ["file", "out"]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(stat.S_ISDIR, errno.EIO, id="a disk that fails"),
        pytest.param(stat.S_ISREG, errno.EINVAL, id="a file"),
    ],
)
def test_what_should_have_been_synced_and_was_not_is_an_error(tmp_path, fsync, kind, number):
    fsync(kind, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        write(tmp_path / "out")
    with pytest.raises(OSError, match=os.strerror(number)), replaced(tmp_path / "file") as file:
        file.write(b"new")
