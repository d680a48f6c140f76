"""The build cache through the real command: no compiler on a warm build, trouble in a sentence."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_compile.cache import Store
from mlc_compile.cache.key import FILES
from mlc_compile.cli.cache import CACHE_COMMANDS
from mlc_compile.cli.options import size
from mlc_compile.errors import ConfigError
from mlc_compile.target import find_target

HOME = "nano-qwen3-q4f16_1"
ALL_CACHED = {"library": "cached", "packed": "cached", "proof": "cached"}
SHORT = ("--context", "100")


@pytest.fixture
def filled(first, tmp_path):
    """A copy of that cache, to be spoilt."""
    return Path(shutil.copytree(first[0], tmp_path / "cache"))


def contents(out: Path) -> dict[str, bytes]:
    files = (p for p in out.rglob("*") if p.is_file() and p.name != "build-log.json")
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in files}


# ---- build -------------------------------------------------------------------------------


def test_the_story_and_the_result_say_where_each_step_came_from(run, first, nano_checkpoint):
    cache, out = first
    ran = run(cache, "build", nano_checkpoint, "-o", out)
    assert ran.out == f"{out / HOME / 'cpu'}\n"
    converting, weights, steps, proof = ran.err.splitlines()
    assert re.fullmatch(r"converting \d\.\d s", converting)
    assert weights == "weights: cached"
    assert steps == "cpu: library: cached, packed: cached, proof: cached; nothing to write"
    assert proof.startswith("cpu: proof pass")
    told = run(cache, "build", nano_checkpoint, "-o", out, "--json").json
    assert told["cache"] == {"weights": "cached"}
    assert told["notes"] == []
    assert told["artifacts"][0]["cache"] == ALL_CACHED
    assert told["artifacts"][0]["unchanged"] is True


def test_another_directory_locale_and_seed_restore_the_same_bytes(
    run, first, nano_checkpoint, tmp_path
):
    cache, out = first
    moved = Path(shutil.copytree(nano_checkpoint, tmp_path / "far" / nano_checkpoint.name))
    other = {"LC_ALL": "C", "PYTHONHASHSEED": "7", "TVM_NUM_THREADS": "1", "TZ": "Asia/Tokyo"}
    arguments = ("build", moved, "-o", tmp_path / "out", "--json", "--locked")
    ran = run(cache, *arguments, env=os.environ | other, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.json["artifacts"][0]["cache"] == ALL_CACHED
    assert contents(tmp_path / "out") == contents(out)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_warm_build_loads_no_compiler(first, loaded, nano_checkpoint, tmp_path, fresh):
    cache, out = first
    where = tmp_path / "out" if fresh else out
    command = ["build", nano_checkpoint, "-o", where, "--cache-dir", cache, "--locked"]
    assert loaded(*command) == "0 []"


@pytest.fixture(scope="module")
def four(package, nano_checkpoint, tmp_path_factory):
    """Four builds at once with an empty cache, two into one directory; each, and what it told.

    Their context is short: those who have the cache of another build compare with them.
    """
    base = tmp_path_factory.mktemp("four")
    outs = [base / name for name in ("same", "same", "b", "c")]
    command = [sys.executable, "-m", "mlc_compile", "build", str(nano_checkpoint), "--json"]
    env = {**os.environ, "PYTHONPATH": str(package), "MLC_COMPILE_CACHE": str(base / "cache")}
    builds = [
        subprocess.Popen(
            [*command, *SHORT, "-o", str(out)],
            env=env,
            cwd=package,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in outs
    ]
    told = []
    for build in builds:
        out, err = build.communicate(timeout=300)
        assert build.returncode == 0, err
        told.append(json.loads(out))
    return outs, told


def test_four_builds_at_once_do_the_work_once(four):
    outs, told = four
    assert [one["cache"]["weights"] for one in told].count("built") == 1
    for step in ALL_CACHED:
        assert [one["artifacts"][0]["cache"][step] for one in told].count("built") == 1, step
    for out in outs:
        assert contents(out) == contents(outs[0])


def test_another_context_compiles_only_the_kernels_that_depend_on_it(
    run, filled, four, nano_checkpoint, tmp_path
):
    """None does here: lengths are symbols to kernels, and the limits are the machine's code."""
    ran = run(filled, "build", nano_checkpoint, "-o", tmp_path / "out", *SHORT, "--json")
    assert ran.code == 0, ran.err
    (told,) = ran.json["artifacts"]
    assert told["cache"] == {"library": "built", "packed": "cached", "proof": "built"}
    assert told["kernels"]["cached"] > 10
    assert told["kernels"]["built"] == 0
    log = json.loads((tmp_path / "out" / HOME / "cpu" / "build-log.json").read_text())
    assert log["kernels"] == told["kernels"]
    alone = [one["artifacts"][0]["kernels"] for one in four[1]]
    assert {"cached": 0, "built": told["kernels"]["cached"]} in alone
    assert contents(four[0][0]) == contents(tmp_path / "out")


def test_locked_names_what_differs(run, first, nano_checkpoint, tmp_path):
    options = ["--locked", "--context", 100, "-o", tmp_path / "out"]
    ran = run(first[0], "build", nano_checkpoint, *options)
    assert (ran.code, ran.out) == (6, "")
    assert "--locked, but the library would have to be made: limits.context" in ran.err
    ran = run(tmp_path / "empty", "build", nano_checkpoint, *options)
    assert ran.code == 6
    assert "the converted weights would have to be made: the cache has nothing" in ran.err
    assert not (tmp_path / "out" / HOME / "cpu").exists()


def test_locked_and_no_cache_contradict_each_other(run, nano_checkpoint, tmp_path):
    ran = run(tmp_path, "build", nano_checkpoint, "--locked", "--no-cache", "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")


def test_a_damaged_entry_is_one_line_of_the_story(run, filled, first, nano_checkpoint, tmp_path):
    spoil(filled, "packed")
    ran = run(filled, "build", nano_checkpoint, "-o", tmp_path / "out")
    assert ran.code == 0
    assert ran.err.startswith("a packed entry of the cache was damaged (weights.bin is damaged")
    assert "library: cached, packed: built, proof: cached" in ran.err
    assert contents(tmp_path / "out") == contents(first[1])


def test_what_was_wrong_with_the_cache_is_told_where_the_build_fails_too(
    run, filled, nano_checkpoint, tmp_path
):
    spoil(filled, "packed")
    ran = run(filled, "build", nano_checkpoint, "-o", tmp_path / "out", "--locked")
    assert ran.code == 6
    note, error, _hint = ran.err.splitlines()
    assert note.startswith("a packed entry of the cache was damaged (weights.bin is damaged")
    assert error.startswith("error: --locked, but the packed weights would have to be made")
    assert note in error


def spoil(cache: Path, level: str) -> Path:
    """Flip a bit in a file of the only entry of `level`."""
    directory = next(d for d in Store(cache).directories() if d.parent.name == level)
    path = next(p for p in sorted((directory / FILES).rglob("*")) if p.is_file())
    path.chmod(0o644)
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    return directory


@pytest.fixture
def on_disk(package, tmp_path):
    """`on_disk("size=1m", filled, "build", ...)`: with a copy of the cache on such a disk."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def inside(script):
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        env = {**os.environ, "PYTHONPATH": str(package), "MLC_COMPILE_CACHE": str(disk / "cache")}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, cwd=package
        )

    def run(options, filled, *arguments):
        mount = f"mount -t tmpfs -o {options} none {shlex.quote(str(disk))}"
        copy = f"cp -r {shlex.quote(str(filled))} {disk}/cache" if filled else "true"
        lock = f"mount -o remount,ro {disk}" if "ro" in options.split(",") else "true"
        mount = mount.replace("ro,", "")
        command = shlex.join([sys.executable, "-m", "mlc_compile", *map(str, arguments)])
        return inside(f"({mount} && {copy} && {lock}) || exit 99; {command}")

    try:
        usable = inside(f"mount -t tmpfs none {disk}").returncode == 0
    except FileNotFoundError:
        usable = False
    if not usable:
        pytest.skip("this system lets nobody mount a disk of their own (unshare)")
    return run


def test_a_full_disk_for_the_cache_costs_one_sentence(on_disk, nano_checkpoint, tmp_path):
    out = tmp_path / "out"
    ran = on_disk("size=200k", None, "build", nano_checkpoint, "-o", out, "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["artifacts"][0]["check"]["status"] == "pass"
    (note,) = told["notes"]
    assert "too little space is left on the cache's disk: not kept" in note


def test_a_read_only_cache_serves_and_keeps_nothing(on_disk, first, nano_checkpoint, tmp_path):
    arguments = ("build", nano_checkpoint, "-o", tmp_path / "out", "--json")
    ran = on_disk("ro,size=8m", first[0], *arguments)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["artifacts"][0]["cache"] == ALL_CACHED
    (note,) = told["notes"]
    assert "read-only file system" in note
    assert contents(tmp_path / "out") == contents(first[1])


def entries(cache: Path) -> int:
    return len(Store(cache).directories())


# ---- cache -------------------------------------------------------------------------------


def test_every_command_has_help_and_the_common_options(here):
    for name in CACHE_COMMANDS:
        ran = here("cache", name, "--help", env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"})
        assert ran.code == 0, name
        for option in ("--json", "--quiet", "--cache-dir", "--traceback"):
            assert option in ran.out, (name, option)


def test_cache_alone_shows_its_help_and_a_wrong_command_is_a_usage_error(cli):
    assert "explain" in cli("cache", "--help").out
    ran = cli("cache", "expalin")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'explain'?" in ran.err


def test_stats_count_levels_and_bytes(manage, first, tmp_path):
    told = manage(first[0], "stats", "--json").json
    levels = {one["level"]: one["entries"] for one in told["levels"]}
    filled = {"weights", "questions", *ALL_CACHED, "kernel"}
    assert {name for name, n in levels.items() if n} == filled
    assert told["nbytes"] == sum(one["nbytes"] for one in told["levels"])
    assert told["directory"] == str(first[0])
    assert manage(tmp_path / "none", "stats", "--json").json["nbytes"] == 0
    assert not (tmp_path / "none").exists()


def test_explain_says_hit_or_what_differs(run, first, nano_checkpoint):
    ran = run(first[0], "cache", "explain", nano_checkpoint)
    assert ran.out.splitlines() == [
        "weights: hit",
        *(f"cpu: {step}: hit" for step in ("library", "packed", "proof")),
    ]
    steps = run(
        first[0], "cache", "explain", nano_checkpoint, "--kv-dtype", "float32", "--json"
    ).json["steps"]
    library = next(step for step in steps if step["step"] == "library")
    assert library["outcome"] == "miss"
    assert library["differences"] == [
        {"component": "kv.dtype", "wanted": "float32", "nearest": "float16"}
    ]


def test_explain_of_an_empty_cache(run, nano_checkpoint, tmp_path):
    steps = run(tmp_path / "none", "cache", "explain", nano_checkpoint, "--json").json["steps"]
    assert [step["outcome"] for step in steps] == ["miss"] * 4
    assert all(step["reason"] for step in steps)


def test_verify_finds_damage_and_repairs_it(manage, filled):
    total = entries(filled)
    assert total > 4
    assert manage(filled, "verify").out == f"{total} entries, 0 damaged\n"
    directory = spoil(filled, "library")
    ran = manage(filled, "verify", "--json")
    assert ran.code == 6
    (damaged,) = ran.json["damaged"]
    assert damaged["entry"] == str(directory)
    ran = manage(filled, "verify", "--repair")
    assert (ran.code, ran.out) == (0, f"{total} entries, 1 damaged, which were removed\n")
    assert manage(filled, "verify").out == f"{total - 1} entries, 0 damaged\n"


def test_gc_removes_down_to_a_size(manage, filled):
    assert manage(filled, "gc", "--json").json == {
        "removed": [],
        "nbytes": 0,
        "record_lines": 0,
    }
    total = entries(filled)
    everything = manage(filled, "gc", "--max-size", "0", "--json").json
    assert len(everything["removed"]) == total
    assert manage(filled, "stats", "--json").json["nbytes"] == 0


def test_a_cache_carried_elsewhere_serves_there(run, manage, first, nano_checkpoint, tmp_path):
    bundle, other = tmp_path / "cache.bundle", tmp_path / "other"
    ran = manage(first[0], "export", bundle)
    assert (ran.code, ran.out) == (0, f"{bundle}\n")
    assert manage(other, "import", bundle).out == f"{entries(first[0])} new entries\n"
    assert manage(other, "import", bundle).out == "0 new entries\n"
    ran = run(other, "build", nano_checkpoint, "-o", tmp_path / "out", "--locked")
    assert ran.code == 0, ran.err
    assert contents(tmp_path / "out") == contents(first[1])
    data = bundle.read_bytes()
    bundle.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    ran = manage(tmp_path / "third", "import", bundle)
    assert (ran.code, ran.out) == (6, "")
    assert "is damaged" in ran.err


def test_a_bundle_that_is_not_there_is_a_usage_error(manage, tmp_path):
    ran = manage(tmp_path / "cache", "import", tmp_path / "none")
    assert (ran.code, ran.out) == (2, "")
    assert f"no bundle {tmp_path / 'none'}" in ran.err


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1024 B", 1024),
        ("10GiB", 10 << 30),
        ("1.5 MiB", 3 << 19),
        ("2k", 2048),
        ("1T", 1 << 40),
        ("1B", 1),
        ("1GB", 10**9),
        ("1.1 kB", 1100),
        ("0.3TB", 3 * 10**11),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert size(text, "--max-size") == nbytes


@pytest.mark.parametrize("text", ["", "-1", "10", "10 parsecs", "GiB", "1e3", "٣GiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="--max-size must be a size"):
        size(text, "--max-size")


def test_the_limit_may_come_from_the_environment(run, manage, first, nano_checkpoint, tmp_path):
    env = os.environ | {"MLC_COMPILE_CACHE_SIZE": "nonsense"}
    ran = run(first[0], "build", nano_checkpoint, "-o", tmp_path / "out", env=env)
    assert (ran.code, ran.out) == (2, "")
    assert "MLC_COMPILE_CACHE_SIZE must be a size, got 'nonsense'" in ran.err
    assert "for example MLC_COMPILE_CACHE_SIZE=10GiB" in ran.err
    ran = manage(first[0], "stats", "--cache-size", "lots", env=env)
    assert (ran.code, ran.out) == (2, "")
    assert "--cache-size must be a size, got 'lots'" in ran.err


@pytest.mark.parametrize("command", [["stats"], ["verify"], ["gc"], ["export", "bundle"]])
def test_a_cache_that_is_no_directory_is_told(manage, tmp_path, command):
    for name, make in {"file": Path.touch, "loop": lambda p: p.symlink_to(p)}.items():
        make(tmp_path / name)
        ran = manage(tmp_path / name, *command, cwd=tmp_path)
        assert (ran.code, ran.out) == (7, "")
        assert ran.err.startswith(f"error: {tmp_path / name}")
    assert not (tmp_path / "bundle").exists()


def test_a_device_is_no_place_for_a_bundle(manage, first, tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    ran = manage(first[0], "export", tmp_path / "null")
    assert (ran.code, ran.out) == (2, "")
    assert "is a device, a bundle is a file" in ran.err
    assert Path("/dev/null").is_char_device()


def test_a_store_that_takes_nothing_says_so_in_two_lines(manage, first, tmp_path):
    bundle = tmp_path / "bundle"
    assert manage(first[0], "export", bundle).code == 0
    ran = manage(tmp_path / "small", "import", bundle, "--cache-size", 0)
    assert (ran.code, ran.out) == (0, "0 new entries\n")
    assert len(ran.err.splitlines()) == 2


def test_a_target_for_another_machine_is_warm_too(run, filled, nano_checkpoint, tmp_path):
    pytest.importorskip("ziglang")
    foreign = "cpu-aarch64" if find_target("cpu").arch == "x86_64" else "cpu-x86-64-v2"
    arguments = ("build", nano_checkpoint, "-t", foreign, "-o", tmp_path / "out")
    assert run(filled, *arguments).code == 0
    ran = run(filled, *arguments, "--locked", "--json")
    assert ran.code == 0, ran.err
    (told,) = ran.json["artifacts"]
    assert told["cache"] == {**ALL_CACHED, "proof": "not run"}
    assert told["unchanged"]
    assert told["check"]["status"] == "not run"
    ran = run(filled, *arguments)
    assert f"{foreign}: library: cached, packed: cached, proof: not run; nothing" in ran.err
    ran = run(filled, "cache", "explain", nano_checkpoint, "-t", foreign)
    assert ran.out.splitlines()[-1].startswith(f"{foreign}: proof: not run, this artifact cannot")
