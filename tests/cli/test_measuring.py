"""`bench`, `eval`, `verify` and `inspect` as scripts read them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlc_compile.artifact import Library, Manifest, read_manifest, write_manifest
from mlc_compile.cli.inspect import Decision, _folded, _size
from mlc_compile.errors import ConfigError, DamageError, TargetError

Cli = Callable[..., object]
FIELDS = {"phase", "tokens", "depth", "threads", "tok_s", "spread", "peak_rss_bytes"}


@pytest.fixture
def copy(nano_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_artifact, tmp_path / "copy"))


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_text(f"{json.__doc__}\n{shutil.copytree.__doc__}")
    return path


def test_bench_results_have_the_fields_that_scripts_read(cli: Cli, nano_artifact: Path) -> None:
    quick = ["--prompt-tokens", "4,8", "--gen-tokens", 4, "--threads", "1", "--repeats", 1]
    results = cli("bench", nano_artifact, *quick, "--json").json["results"]
    assert [(r["phase"], r["tokens"]) for r in results] == [
        ("prefill", 4),
        ("prefill", 8),
        ("decode", 4),
    ]
    assert all(set(r) >= FIELDS for r in results)


def test_bench_compares_with_the_first_artifact(cli: Cli, nano_artifact: Path, copy: Path) -> None:
    quick = ["--prompt-tokens", "4", "--gen-tokens", 0, "--threads", "1", "--repeats", 1]
    ran = cli("bench", nano_artifact, copy, *quick, "--compare", "--rounds", 2)
    first, second = (line for line in ran.out.splitlines() if "prefill" in line)
    assert first.rstrip().endswith("1.000x")
    assert second.rstrip().endswith("x")


def test_bench_compares_by_six_rounds_with_an_interval(
    cli: Cli, nano_artifact: Path, copy: Path
) -> None:
    quick = ["--prompt-tokens", "4", "--gen-tokens", 0, "--threads", "1", "--repeats", 1]
    got = cli("bench", nano_artifact, copy, *quick, "--compare", "--json").json
    assert got["plan"]["rounds"] == 6
    first, second = got["results"]
    assert first["vs_first"] == {"median": 1.0, "interval": None}
    low, high = second["vs_first"]["interval"]
    assert low <= second["vs_first"]["median"] <= high
    ratios = [b / a for a, b in zip(first["tok_s_by_round"], second["tok_s_by_round"], strict=True)]
    assert [low, high] == [min(ratios), max(ratios)]


def test_bench_has_nothing_to_compare_one_artifact_with(here: Cli, nano_artifact: Path) -> None:
    ran = here("bench", nano_artifact, "--compare")
    assert (ran.code, ran.out) == (2, "")
    assert "--compare needs two artifacts, got one" in ran.err


def test_eval_without_a_reference_has_a_perplexity_and_a_note(
    cli: Cli, nano_artifact: Path, prose: Path
) -> None:
    got = cli("eval", nano_artifact, "--text", prose, "--window", 64, "--json").json
    assert 1 < got["perplexity"] < 512  # a trained model beats guessing among 512 words
    assert got["kl"] is None
    assert got["top1_agreement"] is None
    assert "reference" in got["note"]


def test_eval_against_the_unquantized_build_is_close(
    cli: Cli, build_nano: Callable[..., Path], nano_artifact: Path, prose: Path
) -> None:
    options = ["--text", prose, "--reference", build_nano("q0f32"), "--window", 64, "--json"]
    got = cli("eval", nano_artifact, *options).json
    # Round-to-nearest INT4 of this checkpoint: perplexity rises by about 1 %.
    assert 1e-4 < got["kl"] < 0.1
    assert 0.8 < got["top1_agreement"] <= 1


def test_eval_refuses_an_absent_text(here: Cli, nano_artifact: Path, tmp_path: Path) -> None:
    ran = here("eval", nano_artifact, "--text", tmp_path / "gone.txt")
    assert ran.code == ConfigError.exit_code
    assert "gone.txt" in ran.err


def test_verify_passes_a_fresh_artifact(cli: Cli, nano_artifact: Path) -> None:
    ran = cli("verify", nano_artifact, "--json")
    assert ran.code == 0
    assert ran.json["check"]["status"] == "pass"
    assert ran.json["check"]["max_abs_error"] <= ran.json["check"]["bound"]


def test_verify_names_the_damaged_file(cli: Cli, copy: Path) -> None:
    (copy / "config.json").write_text("{}")
    ran = cli("verify", copy)
    assert ran.code == DamageError.exit_code
    assert "failed on config.json" in ran.err
    assert "config.json" in ran.out


def test_verify_tells_another_tvm_from_damage(cli: Cli, copy: Path) -> None:
    manifest = read_manifest(copy, Manifest)
    versions = msgspec.structs.replace(manifest.versions, tvm="0.1")
    write_manifest(copy, msgspec.structs.replace(manifest, versions=versions))
    ran = cli("verify", copy)
    assert ran.code == TargetError.exit_code
    assert "apache-tvm 0.1" in ran.out


def test_inspect_shows_what_is_inside_and_what_it_costs(here: Cli, nano_artifact: Path) -> None:
    manifest = read_manifest(nano_artifact, Manifest)
    got = here("inspect", nano_artifact, "--json").json
    assert got["manifest"]["plan_digest"] == manifest.plan_digest
    assert got["memory"]["weights"] == manifest.plan.nbytes
    assert set(got["bytes_by_role"]) >= {"embedding", "attention", "mlp", "norm"}
    assert got["events"]
    text = here("inspect", nano_artifact).out
    assert "memory" in text
    assert manifest.triple in text
    assert f"activations {manifest.activations}" in text
    assert manifest.check.told() in text


def test_inspect_finds_a_missing_report(here: Cli, copy: Path) -> None:
    (copy / "report.json").unlink()
    ran = here("inspect", copy)
    assert (ran.code, ran.out) == (DamageError.exit_code, "")
    assert "has no report.json" in ran.err


def test_inspect_refuses_a_weights_directory(here: Cli, nano_artifact: Path) -> None:
    ran = here("inspect", nano_artifact.parent / "weights")
    assert ran.code == ConfigError.exit_code
    assert "must be an artifact" in ran.err


QUICK_KERNELS = ["--prompt-tokens", "8", "--gen-tokens", 2, "--threads", "1", "--repeats", 1]


def test_bench_shows_where_the_time_goes(cli: Cli, nano_artifact: Path) -> None:
    shown = cli("bench", nano_artifact, "--kernels", *QUICK_KERNELS).out
    assert "a prompt of 8 tokens" in shown
    assert "a decoded token" in shown
    assert "flat_step" in shown
    assert "outside kernels" in shown


def test_bench_kernels_has_the_fields_that_scripts_read(cli: Cli, nano_artifact: Path) -> None:
    told = cli("bench", nano_artifact, "--kernels", *QUICK_KERNELS, "--json").json
    assert [p["phase"] for p in told["profiles"]] == ["prefill", "decode"]
    kernel = told["profiles"][1]["kernels"][0]
    assert {"name", "weights", "calls", "seconds", "share", "nbytes", "bytes_s"} <= set(kernel)
    assert {"device", "plan", "artifacts"} <= set(told)


@pytest.mark.parametrize("other", [("--compare",), ("--rounds", 2)])
def test_bench_kernels_does_not_compare(
    here: Cli, nano_artifact: Path, other: tuple[object, ...]
) -> None:
    ran = here("bench", nano_artifact, "--kernels", *other)
    assert (ran.code, ran.out) == (2, "")
    assert "exclude each other" in ran.err


def test_eval_reads_standard_input(cli: Cli, nano_artifact: Path, prose: Path) -> None:
    asked = ["eval", nano_artifact, "--window", 64, "--text"]
    piped = cli(*asked, "-", input=prose.read_text())
    assert piped.out == cli(*asked, prose).out
    assert "add --reference DIR for KL and top-1" in piped.out


def test_inspect_counts_equal_events_and_lists_them_on_request(
    here: Cli, nano_artifact: Path
) -> None:
    events = here("inspect", nano_artifact, "--json").json["events"]
    merged = [e for e in events if e["source"] == "MergeProjections" and e["outcome"] == "done"]
    folded, full = (
        here("inspect", nano_artifact).out,
        here("inspect", nano_artifact, "--events").out,
    )
    (line,) = (line for line in folded.splitlines() if line.startswith("MergeProjections"))
    assert line.split() == ["MergeProjections", "done", f"{len(merged)}", "times"]
    assert full.count("MergeProjections") == len(merged) > 1


def test_inspect_tells_what_alike_events_count() -> None:
    def told(source: str, reason: str) -> str:
        event = Decision(source, "it", "done", reason)
        return next(_folded((event, event)))

    assert told("LowerOperators", "56 calls").endswith("done     2 kernels, 56 calls each")
    assert told("PlanMemory", "0 bytes").endswith("done     2 times: 0 bytes")


def test_inspect_writes_small_sizes_in_kib() -> None:
    assert _size(16 << 10) == "16.0 KiB"
    assert _size(3 << 19) == "1.5 MiB"


def test_inspect_names_the_library_that_loads_here(here: Cli, copy: Path) -> None:
    assert "loads here" not in here("inspect", copy).out
    manifest = read_manifest(copy, Manifest)
    better = Library(path="better.so", requires=("no_such_feature",), priority=1)
    libraries = (*manifest.libraries, better)
    write_manifest(copy, msgspec.structs.replace(manifest, libraries=libraries))
    lines = [line for line in here("inspect", copy).out.splitlines() if line.startswith("library")]
    assert [line.endswith("loads here") for line in lines] == [True, False]
