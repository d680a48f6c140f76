"""Keys: equal parts, equal digests; entries: one changed bit is seen."""

import pytest

from mlc_compile.artifact import File
from mlc_compile.cache.key import ENTRY, Entry, Key, read_entry, write_entry
from mlc_compile.errors import DamageError

KEY = Key(level="packed", parts={"plan": "p", "weights": "w"})


def test_the_order_of_parts_does_not_matter_and_everything_else_does():
    assert Key(level="packed", parts={"weights": "w", "plan": "p"}).digest == KEY.digest
    others = [
        Key(level="library", parts=KEY.parts),
        Key(level="packed", parts={**KEY.parts, "plan": "q"}),
        Key(level="packed", parts={**KEY.parts, "more": ""}),
        Key(level="packed", parts={"plan": "p"}),
        Key(level="packed", parts={"plan": "w", "weights": "p"}),
    ]
    assert len({KEY.digest, *(other.digest for other in others)}) == len(others) + 1


def test_differences_are_named():
    other = Key(level="packed", parts={"plan": "q", "new": "n"})
    assert KEY.differences(other) == ("new", "plan", "weights")
    assert KEY.differences(KEY) == ()


@pytest.fixture
def written(tmp_path):
    entry = Entry(key=KEY, files=(File(path="a/b.bin", nbytes=3, sha256="0" * 64),))
    directory = tmp_path / KEY.digest
    directory.mkdir()
    write_entry(directory, entry)
    return directory, entry


def test_an_entry_is_read_as_it_was_written(written):
    directory, entry = written
    assert read_entry(directory) == entry
    assert entry.nbytes == 3


def test_every_flipped_bit_that_changes_what_an_entry_says_is_damage(written):
    directory, entry = written
    path = directory / ENTRY
    data = path.read_bytes()
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        try:
            found = read_entry(directory)
        except DamageError:
            continue
        assert found == entry, f"byte {i}"  # white space of JSON


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_torn_entry_is_damage(written, length):
    path = written[0] / ENTRY
    path.write_bytes(path.read_bytes()[:length].rstrip(b"\n}"))
    with pytest.raises(DamageError):
        read_entry(written[0])


def test_an_entry_under_another_name_is_damage(written, tmp_path):
    with pytest.raises(DamageError, match="is not as it was written"):
        read_entry(written[0].rename(tmp_path / ("0" * 64)))


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b"])
def test_an_entry_does_not_reach_out_of_its_directory(tmp_path, path):
    directory = tmp_path / KEY.digest
    directory.mkdir()
    write_entry(directory, Entry(key=KEY, files=(File(path=path, nbytes=0, sha256=""),)))
    with pytest.raises(DamageError):
        read_entry(directory)
