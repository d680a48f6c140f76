"""`build`: artifacts appear whole and proven, or not at all."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from mlc_compile.artifact import (
    Check,
    Manifest,
    WeightsManifest,
    describe,
    read_manifest,
    write_manifest,
)
from mlc_compile.cache import Store
from mlc_compile.cli.app import invoke
from mlc_compile.driver import build as module
from mlc_compile.driver import prove as proving
from mlc_compile.driver.build import build
from mlc_compile.driver.job import Options
from mlc_compile.driver.prove import prove
from mlc_compile.driver.reuse import Reuse
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.target import find_target, missing_features
from tests.driver.stand_ins import contents

HOME = "nano-qwen3-q4f16_1"
LIBRARY = find_target("cpu").library


@pytest.fixture
def answer(monkeypatch):
    """`answer(check)`: what the process that replays the proof says."""

    def pretend(check):
        monkeypatch.setattr(proving, "ask", lambda *_args, **_options: check)

    return pretend


def test_a_cpu_that_llvm_does_not_know_is_refused_before_converting(nano_checkpoint, tmp_path):
    row = msgspec.structs.replace(find_target("cpu-x86-64-v2"), mcpu="x86-64-v22")
    with pytest.raises(TargetError, match="LLVM knows no CPU 'x86-64-v22'") as error:
        build(nano_checkpoint, (row,), "q4f16_1", tmp_path / "out")
    assert error.value.exit_code == 4
    assert "x86-64-v2" in error.value.hint
    assert not (tmp_path / "out").exists()


def left_in(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*")}


def names_in(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir()}


def test_an_artifact_holds_everything_that_a_run_needs(nano_artifact):
    assert names_in(nano_artifact) == {
        "manifest.json",
        LIBRARY,
        "weights.bin",
        "proof.safetensors",
        "config.json",
        "generation_config.json",
        "mlc-chat-config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "report.json",
        "build-log.json",
    }


def test_its_manifest_describes_its_files_and_its_proof(nano_artifact):
    manifest = read_manifest(nano_artifact, Manifest)
    for file in manifest.files:
        assert describe(nano_artifact / file.path, file.path) == file
    listed = {file.path for file in manifest.files}
    assert listed == names_in(nano_artifact) - {"manifest.json", "build-log.json"}
    assert (nano_artifact / "weights.bin").stat().st_size == manifest.plan.nbytes
    weights = read_manifest(nano_artifact.parent / "weights", WeightsManifest)
    assert manifest.weights_digest == weights.digest
    assert manifest.check.status == "pass"
    assert manifest.check.max_abs_error < manifest.check.bound


def test_nothing_else_is_left_beside_it(nano_artifact):
    assert names_in(nano_artifact.parent) == {"cpu", "weights"}


@pytest.fixture(scope="module")
def two_targets(cli, nano_checkpoint, tmp_path_factory):
    """Artifacts for this machine and for an older level that it runs too."""
    older = next(
        (
            name
            for name in ("cpu-x86-64-v2", "cpu-aarch64", "cpu-apple-m1")
            if find_target(name).triple == find_target("cpu").triple
            and not missing_features(find_target(name).requires)
        ),
        None,
    )
    if older is None:
        pytest.skip("no preset runs on this machine")
    out = tmp_path_factory.mktemp("two")
    ran = cli("build", nano_checkpoint, "-t", "cpu", "-t", older, "-o", out, "--json")
    assert ran.code == 0, ran.err
    return out / HOME / "cpu", out / HOME / older, ran.json


def test_targets_with_one_plan_share_one_file_of_weights(two_targets):
    one, other, _ = two_targets
    assert read_manifest(one, Manifest).plan_digest == read_manifest(other, Manifest).plan_digest
    assert (one / "weights.bin").samefile(other / "weights.bin")


def test_an_older_level_proves_itself_here(two_targets):
    """float16 scales on a CPU without instructions for them go through a library function."""
    for artifact, told in zip(two_targets, two_targets[2]["artifacts"], strict=False):
        assert told["directory"] == str(artifact)
        assert told["check"]["status"] == "pass"
        assert set(told["seconds"]) == {
            "importing",
            "optimizing",
            "generating code",
            "packing",
            "proving",
        }


def test_the_log_has_every_stage_and_the_converting_counts_once(two_targets):
    told = two_targets[2]
    assert set(told["seconds"]) == {"converting"}
    for artifact, one in zip(two_targets, told["artifacts"], strict=False):
        log = json.loads((artifact / "build-log.json").read_text())
        assert log["seconds"] == one["seconds"]
        assert log["shared_seconds"] == told["seconds"]


@pytest.fixture(scope="module")
def variants(nano_checkpoint, tmp_path_factory):
    """One artifact for two levels, and a third that no CPU has."""
    if find_target("cpu").arch != "x86_64":
        pytest.skip("the variants are those of x86-64")
    out = tmp_path_factory.mktemp("variants")
    rows = ("cpu-x86-64-v3", "cpu-x86-64-v2")
    if missing_features(find_target(rows[0]).requires):
        pytest.skip("this CPU lacks AVX2")
    reuse = Reuse(Store(Path(os.environ["MLC_COMPILE_CACHE"])))  # the third has equal kernels
    build(nano_checkpoint, (impossible(*rows),), "q4f16_1", out, reuse=reuse)
    return out / HOME / "odd"


def impossible(*rows):
    """A target of these rows and one that requires a feature no CPU has."""
    target = find_target("+".join(rows))
    best = target.variants[-1]
    more = (*best.requires, "avx9000")
    odd = msgspec.structs.replace(best, name="odd", requires=more, library="lib-odd.so")
    return msgspec.structs.replace(target, name="odd", variants=(*target.variants, odd))


def test_every_library_that_loads_is_proven_and_the_others_are_named(variants):
    check = read_manifest(variants, Manifest).check
    assert check.status == "pass"
    assert check.reason == "lib-odd.so was not run: this CPU lacks avx9000"


def test_a_library_that_is_not_the_best_is_replayed_too(variants, tmp_path):
    copy = Path(shutil.copytree(variants, tmp_path / "copy"))
    plain = read_manifest(copy, Manifest).libraries[0].path
    (copy / plain).write_bytes(
        b"\x7fELF but no library" + bytes((copy / plain).stat().st_size - 20)
    )
    with pytest.raises(DamageError, match=plain):
        prove(copy, find_target("cpu"))


def test_the_report_holds_the_decisions_of_all_variants(variants):
    report = json.loads((variants / "report.json").read_text())
    manifest = read_manifest(variants, Manifest)
    assert manifest.activation_bytes == max(
        one["planned_bytes"] for one in report["memory"]["functions"]
    )
    events = [tuple(sorted(event.items())) for event in report["events"]]
    assert len(events) == len(set(events))


@pytest.mark.usefixtures("hollow")
def test_compile_lists_every_library(nano_checkpoint, tmp_path, capsys):
    options = ["--target", "cpu-x86-64-v3+v2", "-o", tmp_path / "out"]
    assert invoke([*map(str, ["compile", nano_checkpoint, *options])]) == 0
    ran = capsys.readouterr()
    names = ["lib-cpu-x86-64-v2.so", "lib-cpu-x86-64-v3.so"]
    assert ran.out.splitlines() == [str(tmp_path / "out" / name) for name in names]
    assert "linked by" in ran.err
    listed = read_manifest(tmp_path / "out", Manifest).libraries
    assert [(one.path, one.priority) for one in listed] == list(zip(names, (0, 1), strict=True))


# ---- failures: what the compiler does is none of their claims, so they go without it -----


@pytest.mark.usefixtures("stub")
def test_a_library_that_computes_wrong_is_not_left_behind(nano_checkpoint, tmp_path, answer):
    answer(Check(status="fail", reason="a logit is off by 3", max_abs_error=3.0, bound=0.1))
    with pytest.raises(
        TargetError, match=r"computes wrong logits: .* a logit is off by 3"
    ) as error:
        build(nano_checkpoint, (find_target("cpu"),), "q4f16_1", tmp_path)
    assert error.value.exit_code == 4
    assert names_in(tmp_path / HOME) == {"weights"}  # they were written whole, and can be used


@pytest.mark.parametrize(("activations", "tries"), [("int8", True), ("float32", False)])
def test_only_int8_is_told_that_it_may_be_too_coarse(
    nano_artifact, tmp_path, answer, activations, tries
):
    copy = Path(shutil.copytree(nano_artifact, tmp_path / "copy"))
    manifest = read_manifest(copy, Manifest)
    write_manifest(copy, msgspec.structs.replace(manifest, activations=activations))
    answer(Check(status="fail", reason="a logit is off by 3", max_abs_error=3.0, bound=0.1))
    with pytest.raises(TargetError) as error:
        prove(copy, find_target("cpu"))
    assert ("--activations float32" in error.value.hint) is tries
    assert "mlc-compile doctor" in error.value.hint


def test_a_proof_that_cannot_be_read_keeps_the_class_of_its_error(nano_artifact, tmp_path):
    copy = Path(shutil.copytree(nano_artifact, tmp_path / "copy"))
    (copy / "weights.bin").write_bytes(b"")
    with pytest.raises(DamageError, match=r"weights\.bin must have") as error:
        prove(copy, find_target("cpu"))
    assert error.value.hint == "rebuild the artifact"


def test_a_proof_that_cannot_run_here_is_recorded_as_such(nano_artifact, answer):
    answer(Check(status="not run", reason="no such CPU"))
    assert prove(nano_artifact, find_target("cpu")).status == "not run"


@pytest.mark.usefixtures("stub")
def test_an_old_artifact_outlives_a_failed_build(nano_checkpoint, tmp_path, answer):
    old = tmp_path / HOME / "cpu"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text('{"kind": "artifact", "seal": ""}')
    (old / "lib.so").write_text("old")
    answer(Check(status="fail", reason="wrong"))
    with pytest.raises(TargetError):
        build(nano_checkpoint, (find_target("cpu"),), "q4f16_1", tmp_path)
    assert (old / "lib.so").read_text() == "old"
    assert names_in(tmp_path / HOME) == {"cpu", "weights"}


@pytest.mark.usefixtures("stub")
def test_a_disk_that_fills_up_leaves_no_artifact(nano_checkpoint, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "weights.bin")

    monkeypatch.setattr(module, "pack_weights", full)
    with pytest.raises(OSError, match="No space left"):
        build(nano_checkpoint, (find_target("cpu"),), "q4f16_1", tmp_path)
    assert names_in(tmp_path / HOME) == {"weights"}


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is a shell's")
def test_a_file_that_cannot_grow_is_the_machine_s_fault(nano_checkpoint, tmp_path):
    """A limit on the size of files stands for a full disk: both fail in the middle of a write."""
    command = [sys.executable, "-m", "mlc_compile", "build", nano_checkpoint, "-o", tmp_path]
    limited = f"ulimit -f 32; exec {shlex.join(map(str, command))}"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    told, error, _hint = done.stderr.splitlines()
    assert "cannot keep what is made (file too large)" in told  # the cache, which is limited alike
    assert error.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert left_in(tmp_path) == set()


# TVM's own, which its destructor prints when an interrupt finds a block half built.
TVM_WARNING = re.compile(
    r"^\[[\d:]+\] \S+/block_builder\.cc:\d+: Warning: "
    r"BlockBuilder destroyed with remaining blocks!\n",
    re.MULTILINE,
)


@pytest.mark.parametrize("stage", ["weights", "cpu"])
def test_an_interrupt_leaves_nothing_half_done(nano_checkpoint, tmp_path, stage):
    command = [sys.executable, "-m", "mlc_compile", "build", nano_checkpoint, "-o", tmp_path]
    process = subprocess.Popen(
        [*map(str, command), "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(f"{HOME}/.{stage}.*.partial/new")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    if stage == "cpu":
        time.sleep(1.5)  # into the import of the compiler, or its passes
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    said = TVM_WARNING.sub("", err) if stage == "cpu" else err  # the weights are not TVM's work
    assert said == "interrupted\n"
    whole = {"weights": set(), "cpu": {"weights"}}[stage]  # what was finished before it
    assert {path.split("/")[1] for path in left_in(tmp_path) - {HOME}} == whole
    assert (HOME in left_in(tmp_path)) == bool(whole)


REFUSED = {
    "an unknown scheme": (["--quant", "q3"], 2, "no quantization scheme 'q3'"),
    "an unknown target among others": (["--target", "cpu,gpu"], 2, "no target 'gpu'"),
    "no target": (["--target", ","], 2, "names no target"),
    "a context beyond the model": (["--context", 4097], 2, "beyond the model's 512 tokens"),
    "a chunk beyond the context": (["--prefill-chunk", 600], 2, "larger than the context"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_refused_before_anything_is_written(
    here, nano_checkpoint, tmp_path, case
):
    options, code, told = REFUSED[case]
    ran = here("build", nano_checkpoint, "-o", tmp_path / "out", *options)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert list(tmp_path.iterdir()) == []


def test_int8_on_a_target_without_it_is_refused_before_anything_is_written(
    nano_checkpoint, tmp_path
):
    with pytest.raises(TargetError, match="int8"):
        build(
            nano_checkpoint,
            (find_target("cpu-x86-64-v2"),),
            "q4f16_1",
            tmp_path / "out",
            Options(activations="int8"),
        )
    assert list(tmp_path.iterdir()) == []


def test_somebody_s_directory_is_not_replaced(nano_checkpoint, tmp_path):
    foreign = tmp_path / HOME / "cpu"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="was not written by mlc-compile"):
        build(nano_checkpoint, (find_target("cpu"),), "q4f16_1", tmp_path)
    assert (foreign / "thesis.tex").read_text() == "years of work"
    assert names_in(tmp_path / HOME) == {"cpu"}  # told before the weights were converted


def test_a_file_is_no_place_for_builds(here, nano_checkpoint, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("keep")
    ran = here("build", nano_checkpoint, "-o", file)
    assert (ran.code, ran.out) == (2, "")
    assert f"{file} is a file" in ran.err
    assert file.read_text() == "keep"


def test_a_build_without_the_cache_tells_the_same_and_gives_the_same_bytes(
    cli, nano_checkpoint, nano_artifact, tmp_path
):
    """Paths go to stdout, the rest to stderr."""
    env = {**os.environ, "MLC_COMPILE_CACHE": str(tmp_path / "cache")}
    ran = cli("build", nano_checkpoint, "-o", tmp_path, "--no-cache", env=env)
    assert not (tmp_path / "cache").exists()
    assert contents(tmp_path / HOME) == contents(nano_artifact.parent)
    assert ran.out == f"{tmp_path / HOME / 'cpu'}\n"
    converting, weights, stages, sources, kernels, proof = ran.err.splitlines()
    assert weights == "weights: built"
    assert sources == "cpu: library: built, packed: built, proof: built"
    assert re.fullmatch(r"cpu: kernels: 0 cached, \d+ built", kernels)
    assert re.fullmatch(r"converting \d+\.\d s", converting)
    assert re.fullmatch(r"cpu: importing \d+\.\d s, optimizing .*, proving \d+\.\d s", stages)
    number = r"[\d.e-]+"
    assert re.fullmatch(
        rf"cpu: proof pass, largest error of a logit {number}, allowed {number}", proof
    )
