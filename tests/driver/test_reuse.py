"""`build` with a cache: hits, restored bytes, damage, deaths in the middle, builds in parallel.

The compiler and the replay of the proof are stood in for by what they once made; the tests of
the real thing, which take seconds each, are in tests/cli/test_cache.py.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_compile.artifact import (
    MANIFEST,
    PACKED_WEIGHTS,
    PROOF,
    Check,
    Manifest,
    list_files,
    read_manifest,
)
from mlc_compile.cache import Store
from mlc_compile.cache.key import ENTRY
from mlc_compile.driver import build as module
from mlc_compile.driver import convert as converting
from mlc_compile.driver import keys as keys_module
from mlc_compile.driver import prove as proving
from mlc_compile.driver.build import build
from mlc_compile.driver.compile import DEFAULTS, Options
from mlc_compile.driver.reuse import Kernels, Reuse
from mlc_compile.emit.keeper import Kernel
from mlc_compile.errors import DamageError
from mlc_compile.target import find_target

HOME = "nano-qwen3-q4f16_1"
PASS = Check(status="pass", max_abs_error=0.01, bound=0.1)
ALL_CACHED = {"library": "cached", "packed": "cached", "proof": "cached"}
ALL_BUILT = dict.fromkeys(ALL_CACHED, "built")


@pytest.fixture(scope="session")
def compiled(nano_artifact, tmp_path_factory):
    """What `compile` would leave: the artifact without weights, proof and log."""
    directory = Path(shutil.copytree(nano_artifact, tmp_path_factory.mktemp("stub") / "compiled"))
    for name in (PACKED_WEIGHTS, PROOF, "build-log.json"):
        (directory / name).unlink()
    return directory


@pytest.fixture
def stub(compiled, monkeypatch, tmp_path):
    """Steps that ran, by name; the compiler and the proof are stood in for."""
    ran = []
    install(compiled, tmp_path / "code", monkeypatch.setattr, ran)
    return ran


def install(compiled, code, put, ran):
    """Replace what is slow. Our code is a directory of its own: nobody edits it meanwhile."""
    (code / "configs").mkdir(parents=True, exist_ok=True)
    (code / "passes.py").write_text("")
    convert_into, pack_weights = module.convert_into, module.pack_weights

    def compile_into(scratch, job, _clock):
        ran.append("library")
        shutil.copytree(compiled, scratch, dirs_exist_ok=True)
        (scratch / MANIFEST).unlink()
        manifest = read_manifest(compiled, Manifest)
        return module.replace(
            manifest, limits=job.limits, weights_digest=None, files=list_files(scratch)
        )

    def converted(*args, **options):
        ran.append("weights")
        return convert_into(*args, **options)

    def packed(*args):
        ran.append("packed")
        pack_weights(*args)

    def ask(*_args, **_options):
        ran.append("proof")
        return PASS

    put(module, "compile_into", compile_into)
    put(module, "convert_into", converted)
    put(module, "pack_weights", packed)
    put(proving, "ask", ask)
    put(keys_module, "PACKAGE", code)
    put(keys_module, "config_dir", lambda: code / "configs")


@pytest.fixture
def made(nano, tmp_path, stub):
    """`made("out")`: build with one cache into tmp_path/out; the Build, its bytes."""

    def run(out="out", options=DEFAULTS, cache="cache", frozen=False, targets=("cpu",)):
        stub.clear()
        reuse = Reuse(Store(tmp_path / cache), frozen)
        rows = tuple(find_target(name) for name in targets)
        return build(nano.path, rows, "q4f16_1", tmp_path / out, options, reuse=reuse)

    return run


def contents(out: Path) -> dict[str, bytes]:
    """All files but the logs, which hold times."""
    files = (p for p in out.rglob("*") if p.is_file() and p.name != "build-log.json")
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in files}


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


# ---- damage ------------------------------------------------------------------------------


def entries(cache: Path) -> dict[str, list[Path]]:
    found = {}
    for directory in Store(cache).directories():
        files = sorted(p for p in directory.rglob("*") if p.is_file())
        found[directory.parent.name] = files
    return found


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


def test_an_input_that_changes_under_the_build_is_not_cached(made, nano, stub, monkeypatch):
    write_proof = converting.write_proof

    def meddle(*args):
        write_proof(*args)
        with nano.tensors() as tensors:
            tensors["model.norm.weight"][3] ^= 1

    monkeypatch.setattr(converting, "write_proof", meddle)
    built = made()
    (note,) = built.notes
    assert note.endswith("changed during the build: the converted weights was not cached")
    monkeypatch.setattr(converting, "write_proof", write_proof)
    assert made().weights == "built"


def test_kernels_are_made_once_and_counted(tmp_path, stub):
    def taken(names):
        kernels = Kernels(Reuse(Store(tmp_path / "cache")))
        for name in names:
            kernel = Kernel(name=name, function="f", target="t", settings="s")
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


# ---- deaths ------------------------------------------------------------------------------

# Where a build is killed: (module, function), and before which of its calls.
DEATHS = {
    "converting": ("mlc_compile.driver.convert", "write_proof", 1),
    "the first file goes into the cache": ("mlc_compile.cache.store", "copy_in", 1),
    "a later file of the weights": ("mlc_compile.cache.store", "copy_in", 4),
    "an entry is complete and not in place": ("mlc_compile.cache.store", "sync", 14),
    "an entry is in place and not safe": ("mlc_compile.cache.store", "sync", 15),
    "compiling": ("mlc_compile.driver.build", "compile_into", 1),
    "packing": ("mlc_compile.driver.build", "pack_weights", 1),
    "the packed weights go into the cache": ("mlc_compile.cache.store", "write_entry", 3),
    "proving": ("mlc_compile.driver.prove", "ask", 1),
    "the log": ("mlc_compile.driver.build", "write_log", 1),
    "the output is swapped in": ("mlc_compile.artifact", "_replace", 2),
    "the stamps are saved": ("mlc_compile.driver.reuse", "Stamps.save", 1),
}

DIE = """
import importlib, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_reuse as here
compiled, code, model, cache, out, name, function, count = sys.argv[2:]
here.install(Path(compiled), Path(code), setattr, [])
owner, left = importlib.import_module(name), int(count)
*inside, function = function.split(".")
for part in inside:
    owner = getattr(owner, part)
real = getattr(owner, function)

def die(*args, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)

setattr(owner, function, die)
reuse = here.Reuse(here.Store(Path(cache)))
here.build(Path(model), (here.find_target("cpu"),), "q4f16_1", Path(out), reuse=reuse)
"""


@pytest.mark.parametrize("place", DEATHS)
def test_a_build_that_is_killed_leaves_nothing_that_the_next_would_trust(
    made, stub, nano, compiled, tmp_path, place
):
    made("expected", cache="another")
    paths = (compiled, tmp_path / "code", nano.path, tmp_path / "cache", tmp_path / "out")
    command = [sys.executable, "-c", DIE, Path(__file__).parent, *paths, *DEATHS[place]]
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    built = made()
    assert built.notes == ()
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert {p.name for p in (tmp_path / "out" / HOME).iterdir()} == {"weights", "cpu"}
    assert list((tmp_path / "cache" / "builds" / "1" / "scratch").iterdir()) == []
    assert made().artifacts[0].unchanged


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
