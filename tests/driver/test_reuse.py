"""`build` with a cache: hits, restored bytes, damage, a cache that cannot be used.

The compiler and the replay of the proof are stood in for by what they once made; the tests of
the real thing, which take seconds each, are in tests/cli/test_cache.py.
"""

import os
import shutil
from pathlib import Path

import pytest

from mlc_compile.artifact import (
    MANIFEST,
    PACKED_WEIGHTS,
    PROOF,
    Check,
    Manifest,
    WeightsManifest,
    read_manifest,
    write_manifest,
)
from mlc_compile.cache import Key, Store
from mlc_compile.cache.key import ENTRY
from mlc_compile.driver import build as module
from mlc_compile.driver import prove as proving
from mlc_compile.driver.build import build
from mlc_compile.driver.job import Options
from mlc_compile.driver.reuse import Kernels, Reuse, told
from mlc_compile.emit.keeper import KernelSource
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.target import find_target
from tests.driver.stand_ins import HOME, PASS, contents, entries

ALL_CACHED = {"library": "cached", "packed": "cached", "proof": "cached"}
ALL_BUILT = dict.fromkeys(ALL_CACHED, "built")


def written(out: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in sorted(out.rglob("*"))}


# ---- hits --------------------------------------------------------------------------------


def test_the_first_build_makes_all_and_the_second_writes_nothing(made, stub, tmp_path):
    first = made()
    assert stub == ["weights", "library", "packed", "proof"]
    assert (first.weights, first.artifacts[0].steps) == ("built", ALL_BUILT)
    before = written(tmp_path / "out")
    second = made()
    assert stub == []
    assert (second.weights, second.artifacts[0].steps) == ("cached", ALL_CACHED)
    assert second.artifacts[0].unchanged
    assert second.artifacts[0].manifest == first.artifacts[0].manifest
    assert written(tmp_path / "out") == before
    assert (first.notes, second.notes) == ((), ())


def test_a_restored_build_has_the_same_bytes(made, stub, tmp_path):
    made()
    restored = made("elsewhere")
    assert stub == []
    assert (restored.artifacts[0].steps, restored.artifacts[0].unchanged) == (ALL_CACHED, False)
    assert contents(tmp_path / "out") == contents(tmp_path / "elsewhere")
    made("fresh", cache="another")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_build_without_a_cache_has_the_same_bytes_too(made, stub, nano, tmp_path):
    made()
    built = build(nano.path, (find_target("cpu"),), "q4f16_1", tmp_path / "plain")
    assert (built.weights, built.artifacts[0].steps, built.notes) == ("built", ALL_BUILT, ())
    assert contents(tmp_path / "out") == contents(tmp_path / "plain")


def test_the_log_says_where_each_step_came_from(made, tmp_path):
    made()
    made("again")
    log = (tmp_path / "again" / HOME / "cpu" / "build-log.json").read_text()
    assert log.count('"cached"') == 4


@pytest.mark.parametrize("name", ["weights.bin", "lib.so", "tokenizer.json", PROOF])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_output_is_restored(made, stub, tmp_path, name, how):
    made()
    before = contents(tmp_path / "out")
    path = tmp_path / "out" / HOME / "cpu" / name
    if how == "gone":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    built = made()
    assert stub == []
    assert not built.artifacts[0].unchanged
    assert contents(tmp_path / "out") == before


def test_an_output_whose_manifest_says_something_else_is_restored(made, stub, tmp_path):
    made()
    before = contents(tmp_path / "out")
    path = tmp_path / "out" / HOME / "cpu" / MANIFEST
    path.write_text(path.read_text().replace('"pass"', '"fail"'))
    assert not made().artifacts[0].unchanged
    assert (stub, contents(tmp_path / "out")) == ([], before)


def test_neutral_weights_that_were_changed_are_restored(made, stub, tmp_path):
    made()
    before = contents(tmp_path / "out")
    shard = tmp_path / "out" / HOME / "weights" / "params_shard_0.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert made().weights == "cached"
    assert contents(tmp_path / "out") == before


CHANGES = {
    "a weight": ("weights", ["weights", "packed", "proof"]),
    "the context": ("options", ["library", "proof"]),
    "our code": ("code", ["library", "proof"]),
    "the tokenizer": ("tokenizer", ["weights", "library", "proof"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_only_what_depends_on_a_change_is_made_again(made, stub, nano, tmp_path, case):
    kind, expected = CHANGES[case]
    made()
    options = Options(context=100) if kind == "options" else Options()
    if kind == "weights":
        with nano.tensors() as tensors:
            tensors["model.norm.weight"][3] ^= 1
    if kind == "code":
        (tmp_path / "code" / "passes.py").write_text("# another pass\n")
    if kind == "tokenizer":
        with (nano.path / "tokenizer.json").open("a") as file:
            file.write("\n")
    made(options=options)
    # The stub makes the same library whatever changed, so the proof may be known already.
    assert [step for step in stub if step != "proof"] == [s for s in expected if s != "proof"]
    made()
    made(options=options)
    assert stub == []


def test_targets_share_what_is_equal(made, stub, tmp_path):
    built = made(targets=("cpu", "cpu-x86-64-v3" if is_x86() else "cpu-aarch64"))
    one, other = (artifact.directory / PACKED_WEIGHTS for artifact in built.artifacts)
    assert one.samefile(other)
    assert stub.count("packed") == 1
    again = made(targets=[artifact.manifest.target for artifact in built.artifacts][:1])
    assert again.artifacts[0].unchanged


def is_x86():
    return find_target("cpu").arch == "x86_64"


def test_a_proof_that_did_not_run_is_asked_for_again(made, stub, monkeypatch):
    monkeypatch.setattr(proving, "ask", lambda *_a, **_o: Check(status="not run", reason="away"))
    made()
    monkeypatch.setattr(proving, "ask", lambda *_a, **_o: PASS)
    built = made()
    assert built.artifacts[0].manifest.check == PASS
    assert built.artifacts[0].steps == {**ALL_CACHED, "proof": "built"}
    assert made().artifacts[0].unchanged


def test_what_cannot_run_here_is_warm_and_proven_where_it_can(made, stub, tmp_path, monkeypatch):
    def refuse(_manifest):
        raise TargetError("it is for another machine")

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(proving, "loadable_libraries", refuse)
        (first,) = made().artifacts
        assert "proof" not in stub
        assert first.steps == {**ALL_BUILT, "proof": "not run"}
        assert first.manifest.check == Check(status="not run", reason="it is for another machine")
        before = written(tmp_path / "out")
        for frozen in (False, True):
            (again,) = made(frozen=frozen).artifacts
            assert (again.unchanged, again.steps) == (True, {**ALL_CACHED, "proof": "not run"})
        assert written(tmp_path / "out") == before
        (restored,) = made("other", frozen=True).artifacts
        assert restored.steps == {**ALL_CACHED, "proof": "not run"}
        assert stub == []
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    (proven,) = made().artifacts
    assert stub == ["proof"]
    assert (proven.manifest.check, proven.steps["proof"]) == (PASS, "built")
    assert made().artifacts[0].unchanged


def test_a_backend_without_its_device_cannot_run_here(compiled, monkeypatch):
    manifest = module.replace(read_manifest(compiled, Manifest), backend="cuda")
    monkeypatch.setitem(proving.NO_DEVICE, "cuda", lambda: "there is no GPU")
    assert proving.not_run(manifest) == Check(status="not run", reason="no device: there is no GPU")
    monkeypatch.setitem(proving.NO_DEVICE, "cuda", lambda: "")
    assert proving.not_run(manifest) is None


def test_every_file_has_one_mode_whether_built_or_restored(made, tmp_path, monkeypatch):
    compiled_into = module.compile_into

    def executable(scratch, *args):
        made = compiled_into(scratch, *args)
        (scratch / "lib.so").chmod(0o755)
        return made

    monkeypatch.setattr(module, "compile_into", executable)
    made()
    made("restored")
    for out in ("out", "restored"):
        files = [p for p in (tmp_path / out / HOME / "cpu").iterdir() if p.is_file()]
        assert {p.stat().st_mode for p in files} == {files[0].stat().st_mode}, out
    made_mode, restored_mode = (
        (tmp_path / out / HOME / "cpu" / "lib.so").stat().st_mode for out in ("out", "restored")
    )
    assert made_mode == restored_mode


def test_locked_does_not_make_a_cache(made, tmp_path):
    with pytest.raises(DamageError, match="the cache has nothing of the kind"):
        made(cache="none", frozen=True)
    assert not (tmp_path / "none").exists()


# ---- --locked ----------------------------------------------------------------------------


def test_locked_builds_only_what_is_there(made, stub, tmp_path):
    with pytest.raises(DamageError, match="the cache has nothing of the kind") as error:
        made(frozen=True)
    assert error.value.exit_code == 6
    assert not (tmp_path / "out").exists()
    made()
    assert made("other", frozen=True).artifacts[0].steps == ALL_CACHED
    with pytest.raises(DamageError, match=r"the library would .*: limits.context, limits.pre"):
        made(options=Options(context=100), frozen=True)
    assert stub == []


def test_an_entry_that_appears_once_it_was_missed_differs_in_nothing():
    key = Key(level="library", parts={"part": "a"})
    assert told(key, key) == "its entry was not there a moment ago"


# ---- damage ------------------------------------------------------------------------------


def test_locked_says_that_an_entry_is_damaged_and_not_what_differs(made, tmp_path):
    made()
    made(options=Options(context=100))  # an entry that differs
    path = next(p for p in entries(tmp_path / "cache")["packed"] if p.name == PACKED_WEIGHTS)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(DamageError, match=r"weights would have to be made: a packed entry .* was"):
        made(frozen=True)


@pytest.mark.parametrize("level", ["weights", "library", "packed", "proof"])
def test_a_damaged_entry_is_made_again_and_told(made, stub, tmp_path, level):
    """The entry, its manifest and its largest file, each at its first, middle and last byte."""
    made()
    expected = contents(tmp_path / "out")
    files = entries(tmp_path / "cache")[level]
    largest = max(files, key=lambda path: path.stat().st_size)
    for i, path in enumerate(files):
        if path.name not in {ENTRY, MANIFEST, largest.name}:
            continue
        data = path.read_bytes()
        for at in {0, len(data) // 2, len(data) - 1}:
            now = entries(tmp_path / "cache")[level][i]
            now.chmod(0o644)
            now.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            shutil.rmtree(tmp_path / "out")
            built = made()
            assert contents(tmp_path / "out") == expected
            if path.name == ENTRY and not built.notes:
                continue  # white space of its JSON
            (note,) = built.notes
            assert note.startswith(f"a {level} entry of the cache was damaged")
            assert stub == [level]
            assert made().notes == ()


def test_weights_that_another_build_replaces_are_not_packed_as_ours(made, tmp_path, monkeypatch):
    pack_weights = module.pack_weights

    def replaced_and_packed(*args):
        directory = tmp_path / "out" / HOME / "weights"
        there = read_manifest(directory, WeightsManifest)
        write_manifest(directory, module.replace(there, digest="of another model"))
        pack_weights(*args)

    monkeypatch.setattr(module, "pack_weights", replaced_and_packed)
    with pytest.raises(ConfigError, match="was replaced by another build"):
        made()
    assert "packed" not in entries(tmp_path / "cache")
    assert not (tmp_path / "out" / HOME / "cpu").exists()


def test_an_entry_that_is_collected_while_it_is_looked_at_is_made_again(made, monkeypatch):
    made()
    read = Store.read

    def read_and_lose(store, entry, path):
        data = read(store, entry, path)
        if entry.key.level == "library":
            store.remove(store.files(entry).parent)
        return data

    monkeypatch.setattr(Store, "read", read_and_lose)
    built = made()
    assert built.artifacts[0].steps["library"] == "built"
    assert built.notes == ()


def test_kernels_are_made_once_and_counted(tmp_path, stub):
    def taken(names):
        kernels = Kernels(Reuse(Store(tmp_path / "cache")))
        for name in names:
            kernel = KernelSource(name=name, function="f", target="t", settings="s")
            assert kernels.take(kernel, name.encode) == name.encode()
        return kernels.counts

    assert taken("ab") == {"cached": 0, "built": 2}
    assert taken("abc") == {"cached": 2, "built": 1}
    assert taken("") == {}
    path = next(p for p in entries(tmp_path / "cache")["kernel"] if p.name != ENTRY)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert taken("abc") == {"cached": 2, "built": 1}
    assert taken("abc") == {"cached": 3, "built": 0}


# ---- a cache that cannot be used ----------------------------------------------------------


def test_a_cache_below_a_file_costs_one_sentence(made, stub, tmp_path):
    (tmp_path / "cache").write_text("not a directory")
    built = made()
    assert stub == ["weights", "library", "packed", "proof"]
    (note,) = built.notes
    assert note.startswith(f"the cache in {tmp_path / 'cache'} cannot keep what is made")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_without_permission_costs_one_sentence(made, stub, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    assert len(made().notes) == 1


def test_a_small_cache_keeps_the_last_and_stays_small(made, stub, nano, tmp_path):
    store = Store(tmp_path / "cache", limit=500_000)
    for context in (100, 200, 300, 400):
        target = (find_target("cpu"),)
        build(
            nano.path,
            target,
            "q4f16_1",
            tmp_path / "out",
            Options(context=context),
            reuse=Reuse(store),
        )
    assert sum(one.entry.nbytes for one in store.held()) <= 500_000
    stub.clear()
    assert made(options=Options(context=400)).artifacts[0].unchanged
    made(options=Options(context=100))
    assert "library" in stub
