"""Links between artifacts of one build are links to what it wrote; files have one mode."""

import os

import pytest

from mlc_compile.artifact import describe
from mlc_compile.driver.files import link_file, make_plain
from mlc_compile.driver.reuse import Reuse


@pytest.fixture
def twin(tmp_path):
    """`w.bin` in a finished artifact, and a place for the next."""
    for name in ("twin", "next"):
        (tmp_path / name).mkdir()
    (tmp_path / "twin" / "w.bin").write_bytes(b"weights")
    return tmp_path / "twin", tmp_path / "next"


def test_what_was_written_is_linked(twin):
    file = describe(twin[0] / "w.bin", "w.bin")
    assert link_file(file, *twin, Reuse())
    assert (twin[0] / "w.bin").samefile(twin[1] / "w.bin")


def replaced(directory):
    (directory / "other").write_bytes(b"Weights")
    (directory / "other").replace(directory / "w.bin")


@pytest.mark.parametrize("spoil", [replaced, lambda d: (d / "w.bin").unlink()])
@pytest.mark.parametrize("when", ["before", "between looking and linking"])
@pytest.mark.parametrize("linking", [True, False])
def test_what_a_parallel_build_put_there_is_not_taken(twin, monkeypatch, spoil, when, linking):
    file, reuse = describe(twin[0] / "w.bin", "w.bin"), Reuse()
    reuse.trust(twin[0], (file,))
    is_intact = Reuse.is_intact

    def look_and_spoil(*args):
        intact = is_intact(*args)
        spoil(twin[0])
        return intact

    if when == "before":
        spoil(twin[0])
    else:
        monkeypatch.setattr(Reuse, "is_intact", look_and_spoil)
    if not linking:

        def refuse(*_args):
            raise PermissionError

        monkeypatch.setattr(os, "link", refuse)
    assert not link_file(file, *twin, reuse)
    assert list(twin[1].iterdir()) == []


def test_a_file_system_without_links_gets_a_copy(twin, monkeypatch):
    def refuse(*_args):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert link_file(describe(twin[0] / "w.bin", "w.bin"), *twin, Reuse())
    assert not (twin[0] / "w.bin").samefile(twin[1] / "w.bin")
    assert (twin[1] / "w.bin").read_bytes() == b"weights"


def test_every_file_gets_the_mode_of_the_one_named(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("text", "lib.so", "deep/x"):
        (tmp_path / name).write_text("")
    (tmp_path / "lib.so").chmod(0o755)
    (tmp_path / "text").chmod(0o640)
    make_plain(tmp_path, like=tmp_path / "text")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("lib.so", "deep/x")]
    assert modes == [0o640, 0o640]
