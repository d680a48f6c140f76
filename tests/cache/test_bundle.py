"""Bundles: a round trip, equal bytes for equal entries, and no damaged one taken in."""

import errno
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from mlc_compile.cache import Store
from mlc_compile.cache import bundle as module
from mlc_compile.cache.bundle import MAGIC, export_entries, import_entries
from mlc_compile.cache.key import FILES
from mlc_compile.errors import ConfigError, DamageError


@pytest.fixture
def full(store, put):
    put(store, "a", {"lib.so": b"code", "deep/text": b"text"})
    put(store, "b", {"weights.bin": bytes(5000)}, level="packed")
    return store


def held(store):
    return {one.entry.key.digest: one.entry for one in store.held()}


def test_a_round_trip_brings_every_entry(full, tmp_path):
    exported = export_entries(full, tmp_path / "bundle")
    other = Store(tmp_path / "other")
    imported = import_entries(other, tmp_path / "bundle")
    digests = [{entry.key.digest for entry in some} for some in (exported, imported)]
    assert digests[0] == digests[1] == set(held(full))
    assert held(other) == held(full)
    (tmp_path / "out").mkdir()
    for one in other.held():
        assert other.restore(one.entry, tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "text").read_bytes() == b"text"
    assert {path.name for path in other.root.iterdir()} == {"entries", "locks", "scratch"}


def test_what_is_there_already_is_left_alone(full, tmp_path):
    export_entries(full, tmp_path / "bundle")
    assert import_entries(full, tmp_path / "bundle") == ()


def test_equal_entries_give_equal_bundles(full, tmp_path):
    export_entries(full, tmp_path / "one")
    other = Store(tmp_path / "other")
    import_entries(other, tmp_path / "one")
    export_entries(other, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_files_of_others_travel_along_and_are_handed_back(full, tmp_path):
    beside, taken = {"records/1/x": b"lines\n", "a": b""}, {}
    export_entries(full, tmp_path / "bundle", beside)
    other = Store(tmp_path / "other")

    def take(directory):
        files = (path for path in directory.rglob("*") if path.is_file())
        taken.update({p.relative_to(directory).as_posix(): p.read_bytes() for p in files})

    import_entries(other, tmp_path / "bundle", take)
    assert taken == beside
    assert held(other) == held(full)
    import_entries(Store(tmp_path / "third"), tmp_path / "bundle")  # nobody asks for them


def test_who_takes_them_may_refuse_and_no_entry_is_imported(full, tmp_path):
    export_entries(full, tmp_path / "bundle", {"a": b"1"})
    other = Store(tmp_path / "other")

    def refuse(_directory):
        raise DamageError("no")

    with pytest.raises(DamageError, match="no"):
        import_entries(other, tmp_path / "bundle", refuse)
    assert other.held() == ()


@pytest.mark.parametrize("how", ["changed", "unreadable"])
def test_a_damaged_entry_stays_out_of_the_bundle(full, tmp_path, monkeypatch, how):
    packed = next(d for d in full.directories() if d.parent.name == "packed")
    if how == "changed":
        (packed / FILES / "weights.bin").write_bytes(bytes(4999) + b"\1")
    else:
        describe = module.describe

        def failing(path, name):
            if name == "weights.bin":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return describe(path, name)

        monkeypatch.setattr(module, "describe", failing)
    written = export_entries(full, tmp_path / "bundle")
    assert [entry.key.level for entry in written] == ["library"]


def test_a_bundle_changed_anywhere_is_refused_and_brings_nothing(full, tmp_path):
    bundle, other = tmp_path / "bundle", Store(tmp_path / "other")
    export_entries(full, bundle)
    data = bundle.read_bytes()
    for at in [*range(0, len(data), 997), len(MAGIC), len(MAGIC) + 64, len(data) - 1]:
        bundle.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises((DamageError, ConfigError)):
            import_entries(other, bundle)
    for length in (0, len(MAGIC), 100, len(data) - 1):
        bundle.write_bytes(data[:length])
        with pytest.raises((DamageError, ConfigError)):
            import_entries(other, bundle)
    assert other.held() == ()


def forged(members):
    """A bundle with a right digest, made by somebody else."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    payload = raw.getvalue()
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def link():
    info = tarfile.TarInfo("library/link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc"
    return info


def member(path):
    return tarfile.TarInfo(f"library/{'0' * 64}/{path}")


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([(tarfile.TarInfo("../evil"), b"x")], id="upward"),
        pytest.param([(tarfile.TarInfo("/tmp/evil"), b"x")], id="absolute"),
        pytest.param([(link(), b"")], id="a link"),
        pytest.param([(member("entry.json"), b"{}")], id="no entry"),
        pytest.param([(member("files/x"), b"x")], id="an entry cut in half"),
        pytest.param([(member("files/x"), b"x")] * 2, id="the same twice"),
        pytest.param([(tarfile.TarInfo("."), b"x")], id="the directory itself"),
        pytest.param([(member("."), b"x")], id="the entry itself"),
        pytest.param([(member("files/./x"), b"x")], id="not the plain way to write it"),
        pytest.param([(member("files/../../../evil"), b"x")], id="up from an entry"),
        pytest.param([(member("other"), b"x")], id="neither entry nor file"),
        pytest.param([(tarfile.TarInfo(f"x/{'0' * 64}/files/x"), b"x")], id="an unknown level"),
        pytest.param([(member("files/" + "x" * 300), b"x")], id="a name too long"),
        pytest.param([(member("files/" + "x/" * 3000 + "x"), b"x")], id="a path too long"),
        pytest.param(
            [(member("files/x"), b""), (member("files/x/y"), b"")], id="file as directory"
        ),
        pytest.param(
            [(member("files/x/y"), b""), (member("files/x"), b"")], id="directory as file"
        ),
    ],
)
def test_a_forged_bundle_is_refused_and_writes_nothing_elsewhere(store, tmp_path, members):
    (tmp_path / "bundle").write_bytes(forged(members))
    with pytest.raises(DamageError) as error:
        import_entries(store, tmp_path / "bundle")
    assert str(error.value).startswith(f"{tmp_path / 'bundle'} ")
    assert str(store.scratch) not in str(error.value)
    assert len(str(error.value)) < 400
    assert store.held() == ()
    assert not list(tmp_path.rglob("evil"))


def test_one_wrong_byte_behind_a_right_digest_brings_nothing(full, tmp_path):
    """The last entry is wrong: those before it are not taken either."""
    export_entries(full, tmp_path / "bundle")
    data = (tmp_path / "bundle").read_bytes()[len(MAGIC) + 65 :]
    at = data.index(bytes(5000)) + 4000
    data = data[:at] + b"\1" + data[at + 1 :]
    digest = hashlib.sha256(data).hexdigest().encode()
    (tmp_path / "bundle").write_bytes(MAGIC + digest + b"\n" + data)
    other = Store(tmp_path / "other")
    with pytest.raises(DamageError, match=r"bundle cannot be unpacked: packed/.*'weights\.bin'"):
        import_entries(other, tmp_path / "bundle")
    assert other.directories() == ()
    assert list(other.scratch.iterdir()) == []


def test_what_a_killed_import_left_goes_with_the_next(full, tmp_path):
    export_entries(full, tmp_path / "bundle")
    left = full.scratch / "import.dead" / "library"
    left.mkdir(parents=True)
    import_entries(full, tmp_path / "bundle")
    assert list(full.scratch.iterdir()) == []


def test_entries_that_a_small_store_drops_do_not_count_as_taken(full, tmp_path):
    export_entries(full, tmp_path / "bundle")
    none = Store(tmp_path / "none", limit=0)
    assert import_entries(none, tmp_path / "bundle") == ()
    assert len([note for note in none.notes if "more than the cache may hold" in note]) == 1
    assert none.notes[-1] == "2 of 2 new entries did not stay"
    small = Store(tmp_path / "small", limit=5000)
    (stayed,) = import_entries(small, tmp_path / "bundle")
    assert [one.entry for one in small.held()] == [stayed]
    assert small.notes == ["1 of 2 new entries did not stay"]


def test_an_import_that_was_killed_leaves_nothing_behind_for_good(full, tmp_path, monkeypatch):
    export_entries(full, tmp_path / "bundle")
    unpack, seen = module._unpack, []

    def unpack_and_collect(tar, directory):
        unpack(tar, directory)
        seen.append(Path(shutil.copytree(directory, f"{directory}x")))  # what a killed one leaves
        other.collect(other.limit)
        assert directory.is_dir()
        assert seen[0].is_dir()  # nobody can tell it from what is at work

    other = Store(tmp_path / "other")
    monkeypatch.setattr(module, "_unpack", unpack_and_collect)
    import_entries(other, tmp_path / "bundle")
    other.collect(other.limit)
    assert not seen[0].exists()


def test_an_entry_is_not_collected_while_it_is_exported(full, tmp_path, monkeypatch):
    put_file = module._put

    def collect_and_put(*args):
        full.collect(0)
        put_file(*args)

    monkeypatch.setattr(module, "_put", collect_and_put)
    written = export_entries(full, tmp_path / "bundle")
    assert len(written) == 1  # the other one was free to go
    assert import_entries(Store(tmp_path / "other"), tmp_path / "bundle") == written


def test_a_tar_of_a_foreign_kind_is_no_bundle(store, tmp_path):
    (tmp_path / "bundle").write_bytes(b"PK\3\4 something else entirely")
    with pytest.raises(ConfigError, match="is no cache bundle"):
        import_entries(store, tmp_path / "bundle")


def test_a_bundle_is_not_read_from_a_pipe(full, tmp_path):
    export_entries(full, tmp_path / "bundle")
    read, write = os.pipe()
    os.write(write, (tmp_path / "bundle").read_bytes()[:1024])
    os.close(write)
    with pytest.raises(ConfigError, match=f"/dev/fd/{read} is no regular file"):
        import_entries(Store(tmp_path / "other"), Path(f"/dev/fd/{read}"))
    os.close(read)


def test_a_directory_is_no_place_for_a_bundle(full, tmp_path):
    with pytest.raises(ConfigError, match="is a directory"):
        export_entries(full, tmp_path)


OTHERS = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/null"),
    "a symbolic link that leads nowhere": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_only_a_file_is_replaced(full, tmp_path, kind):
    place = tmp_path / "place"
    OTHERS[kind](place)
    before = place.lstat()
    with pytest.raises(ConfigError, match=f"place is {kind}, a bundle is a file") as error:
        export_entries(full, place)
    assert error.value.hint
    assert place.lstat() == before
    assert not list(tmp_path.glob("*.partial"))


def test_a_link_stays_and_what_it_leads_to_is_replaced(full, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "bundle").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/bundle")
    written = export_entries(full, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert import_entries(Store(tmp_path / "other"), tmp_path / "far" / "bundle") == written


def test_two_exports_to_one_file_do_not_disturb_each_other(full, tmp_path, monkeypatch):
    digest_from = module._digest_from

    def export_too(*args):
        monkeypatch.setattr(module, "_digest_from", digest_from)
        export_entries(full, tmp_path / "bundle")
        return digest_from(*args)

    monkeypatch.setattr(module, "_digest_from", export_too)
    written = export_entries(full, tmp_path / "bundle")
    assert import_entries(Store(tmp_path / "other"), tmp_path / "bundle") == written
    assert not list(tmp_path.glob("*.partial"))


def test_a_failed_export_keeps_the_old_file(full, tmp_path, monkeypatch):
    (tmp_path / "bundle").write_bytes(b"old")
    monkeypatch.setattr("mlc_compile.cache.bundle._put", lambda *_args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_entries(full, tmp_path / "bundle")
    assert (tmp_path / "bundle").read_bytes() == b"old"
    assert not list(tmp_path.glob("*.partial"))
