"""Stamps: a digest is worked out again when, and only when, the file may have changed."""

import hashlib
import os
import time

import pytest

from mlc_compile.artifact import File
from mlc_compile.cache import stamps as module
from mlc_compile.cache.stamps import FILE, Stamps


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files whose bytes were read."""
    names, describe = [], module.describe

    def count(path, name):
        names.append(path.name)
        return describe(path, name)

    monkeypatch.setattr(module, "describe", count)
    return names


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that counts as settled."""
    monkeypatch.setattr(module, "SETTLED", 0)
    path = tmp_path / "input.bin"
    path.write_bytes(b"one")
    return path


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def saved(root, *paths):
    stamps = Stamps(root)
    for path in paths:
        stamps.digest(path)
    stamps.save()
    return Stamps(root)


def test_a_file_is_hashed_once_for_all_processes(tmp_path, file, hashed):
    again = saved(tmp_path / "root", file, file)
    assert again.digest(file) == sha256(b"one")
    assert hashed == ["input.bin"]


def test_equal_size_and_time_do_not_hide_a_change(tmp_path, file, hashed):
    """The change time gives it away, which `touch -r` cannot set."""
    before = file.stat()
    again = saved(tmp_path / "root", file)
    time.sleep(0.02)  # more than a tick of the file system's clock
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert again.digest(file) == sha256(b"two")


def test_a_file_put_in_its_place_is_read(tmp_path, file):
    again = saved(tmp_path / "root", file)
    other = tmp_path / "other"
    other.write_bytes(b"two")
    other.replace(file)
    assert again.digest(file) == sha256(b"two")


def test_a_file_that_may_still_change_is_not_remembered(tmp_path, file, hashed, monkeypatch):
    monkeypatch.setattr(module, "SETTLED", 10**15)
    again = saved(tmp_path / "root", file)
    again.digest(file)
    assert len(hashed) == 2


def test_links_share_the_stamp_of_what_they_lead_to(tmp_path, file, hashed):
    (tmp_path / "link").symlink_to(file)
    assert saved(tmp_path / "root", file).digest(tmp_path / "link") == sha256(b"one")
    assert len(hashed) == 1


def test_distrust_reads_again_what_another_process_read_and_only_that(tmp_path, file, hashed):
    again = saved(tmp_path / "root", file)
    again.digest(file)
    again.distrust([file])
    again.digest(file)
    again.distrust([file])
    again.digest(file)
    assert len(hashed) == 2


def test_a_wrong_stamp_is_found_by_distrust(tmp_path, file):
    root = tmp_path / "root"
    saved(root, file)
    (root / FILE).write_bytes(
        (root / FILE).read_bytes().replace(sha256(b"one").encode(), b"f" * 64)
    )
    lying = Stamps(root)
    assert lying.digest(file) == "f" * 64
    lying.distrust([file])
    assert lying.digest(file) == sha256(b"one")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": [1]}'])
def test_a_damaged_file_of_stamps_is_the_same_as_none(tmp_path, file, damage):
    root = tmp_path / "root"
    saved(root, file)
    (root / FILE).write_bytes(damage)
    assert Stamps(root).digest(file) == sha256(b"one")


def test_what_changed_since_it_was_asked_for_is_named(tmp_path, file):
    other = tmp_path / "other"
    other.write_bytes(b"other")
    stamps = Stamps()
    stamps.digest(file)
    stamps.digest(other)
    assert stamps.changed([file, other]) is None
    file.write_bytes(b"longer")
    assert stamps.changed([file, other]) == file
    assert stamps.changed([other]) is None
    other.unlink()
    assert stamps.changed([other]) == other


def test_a_link_that_leads_elsewhere_since_has_changed(tmp_path, file):
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(file)
    other.write_bytes(b"other")
    stamps = Stamps()
    assert stamps.digest(link) == sha256(b"one")
    assert stamps.digest(other) == sha256(b"other")  # so that where it leads is an input too
    assert stamps.changed([link, other]) is None
    link.unlink()
    link.symlink_to(other)
    assert stamps.digest(link) == sha256(b"one")
    assert stamps.changed([link, other]) == link


def test_the_first_answer_stays_and_a_later_question_does_not_hide_the_change(file):
    stamps = Stamps()
    assert stamps.digest(file) == sha256(b"one")
    file.write_bytes(b"longer")
    assert stamps.digest(file) == sha256(b"one")
    assert stamps.changed([file]) == file


@pytest.mark.parametrize("asked_first", [False, True])
def test_what_changed_since_it_was_looked_at_is_named_whenever_its_digest_is_asked_for(
    tmp_path, file, asked_first
):
    stamps = saved(tmp_path / "root", file)
    stamps.watch([file, tmp_path / "absent"])
    if asked_first:
        stamps.digest(file)
    file.write_bytes(b"longer")
    stamps.distrust([file])
    assert stamps.digest(file) == sha256(b"longer")
    assert stamps.changed([file]) == file


def test_a_path_that_is_no_text_is_not_remembered_and_others_are(tmp_path, file):
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.write_bytes(b"odd")
    again = saved(tmp_path / "root", file, odd)
    assert again.digest(odd) == sha256(b"odd")
    assert str(file) in (tmp_path / "root" / FILE).read_text()


def test_own_files_are_believed_without_reading(tmp_path, file, hashed):
    stamps = Stamps(tmp_path / "root")
    stamps.remember(tmp_path, (File(path=file.name, nbytes=3, sha256=sha256(b"one")),))
    assert stamps.matches(file, sha256(b"one"))
    assert not stamps.matches(file, sha256(b"two"))
    assert not stamps.matches(tmp_path / "absent", sha256(b"one"))
    assert hashed == []


def test_processes_that_save_in_turn_keep_each_other_s_stamps(tmp_path, file, hashed):
    other = tmp_path / "other.bin"
    other.write_bytes(b"other")
    one, two = Stamps(tmp_path / "root"), Stamps(tmp_path / "root")
    one.digest(file)
    two.digest(other)
    one.save()
    two.save()
    both = Stamps(tmp_path / "root")
    both.digest(file)
    both.digest(other)
    assert len(hashed) == 2


def test_stamps_of_files_that_are_gone_do_not_pile_up(tmp_path, file, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    gone = tmp_path / "gone"
    gone.write_bytes(b"gone")
    stamps = Stamps(tmp_path / "root")
    stamps.digest(file)
    stamps.digest(gone)
    gone.unlink()
    stamps.save()
    text = (tmp_path / "root" / FILE).read_text()
    assert str(file) in text
    assert str(gone) not in text
