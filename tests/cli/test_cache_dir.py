"""Without a home directory the cache goes where nobody else can write, or nowhere."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from mlc_compile.cli.cache_dir import default_cache_dir
from mlc_compile.cli.console import Output
from mlc_compile.errors import EnvironmentError_


def test_without_a_home_caches_go_to_the_temporary_directory(monkeypatch, nowhere):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert default_cache_dir() == nowhere


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Where caches go for who has no home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"mlc_compile-{os.getuid()}"


def test_an_empty_home_is_as_good_as_none(nowhere):
    for _ in range(2):  # the second time it is there
        assert default_cache_dir() == nowhere
        assert stat.S_IMODE(nowhere.lstat().st_mode) == 0o700


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.mkdir() or path.chmod(0o770), id="writable by others"),
        pytest.param(lambda path: path.symlink_to(path.parent), id="a link"),
        pytest.param(Path.touch, id="a file"),
    ],
)
def test_a_cache_that_another_user_may_have_put_there_is_refused(nowhere, make):
    make(nowhere)
    with pytest.raises(EnvironmentError_, match="is not this user's alone") as e:
        default_cache_dir()
    assert "--cache-dir" in e.value.hint
    assert Output(cache=Path("elsewhere")).cache_dir == Path("elsewhere")


def test_another_user_s_cache_is_refused(nowhere, monkeypatch):
    nowhere.mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    nowhere.rename(nowhere.with_name(f"mlc_compile-{me + 1}"))
    with pytest.raises(EnvironmentError_):
        default_cache_dir()


def test_a_place_that_cannot_be_made_is_refused(nowhere, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere.parent / "absent"))
    with pytest.raises(EnvironmentError_, match="cannot be made: No such file") as e:
        default_cache_dir()
    assert "--cache-dir" in e.value.hint


def test_a_command_settles_the_place_once(nowhere):
    output = Output()
    assert output.cache_dir == nowhere
    nowhere.rmdir()
    assert output.cache_dir == nowhere
    assert not nowhere.exists()
