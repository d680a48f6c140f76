"""scripts/bench_device.sh with a stand-in for `mlc-compile bench`: loops, files, exit codes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "bench_device.sh"

# Answers as `bench --json` does; fails with 4 for an artifact named "broken".
STAND_IN = """
import json, sys
directory = sys.argv[2]
option = dict(zip(sys.argv[5::2], sys.argv[6::2]))
if directory.endswith("broken"):
    sys.exit(4)
def row(phase, tokens):
    return {"artifact": directory, "phase": phase, "tokens": tokens, "depth": 0,
            "threads": int(option["--threads"]), "tok_s": 10.0, "spread": 0.01,
            "peak_rss_bytes": 1, "roofline_share": None}
results = [row("prefill", int(option["--prompt-tokens"]))]
if option["--gen-tokens"] != "0":
    results.append(row("decode", int(option["--gen-tokens"])))
print(json.dumps({
    "device": {"cpu": "a CPU, with a comma"}, "results": results,
    "artifacts": [{"artifact": directory, "model": "m", "quant": "q", "target": "cpu"}]}))
"""


@pytest.fixture
def bench(tmp_path):
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)
    for name in ("one", "two", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")

    def run(*arguments, **variables):
        env = os.environ | {
            "MLC_COMPILE": f"{sys.executable} {stand_in}",
            "PYTHON": sys.executable,
            **variables,
        }
        command = ["bash", SCRIPT, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    return run


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_artifact_thread_count_and_prompt_is_measured_once(bench, tmp_path):
    ran = bench("-o", "out/b", "-j", "1,2", "-p", "8,16", "-n", "4", "one", "two")
    assert ran.returncode == 0, ran.stderr
    rows = table(tmp_path / "out" / "b.csv")
    seen = [(r["artifact"], r["threads"], r["phase"], r["tokens"]) for r in rows]
    assert len(seen) == len(set(seen))
    assert set(seen) == {
        (artifact, threads, phase, tokens)
        for artifact in ("one", "two")
        for threads in ("1", "2")
        for phase, tokens in (("prefill", "8"), ("prefill", "16"), ("decode", "4"))
    }
    assert rows[0]["cpu"] == "a CPU, with a comma"
    assert ran.stdout.split() == ["out/b.csv", "out/b.json"]


def test_the_json_holds_the_answers_whole(bench, tmp_path):
    bench("-o", "b", "-j", "1", "-p", "8", "one")
    (answer,) = json.loads((tmp_path / "b.json").read_text())["runs"]
    assert answer["artifacts"][0]["model"] == "m"


def test_a_failing_artifact_sets_the_exit_code_and_spares_the_rest(bench, tmp_path):
    ran = bench("-o", "b", "-j", "1", "-p", "8", "broken", "one")
    assert ran.returncode == 4
    assert {r["artifact"] for r in table(tmp_path / "b.csv")} == {"one"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no artifact given"),
        (["-z", "one"], "unknown option -z"),
        (["-o"], "-o needs a value"),
        (["one", "-r", "1"], "options go before ARTIFACT: -r"),
        (["-p", "", "one"], "-p must be whole numbers separated by commas, got ''"),
        (["-p", ",", "one"], "-p must be whole numbers separated by commas, got ','"),
        (["-p", "8,0", "one"], "-p must be 1 or more, got 0"),
        (["-j", "", "one"], "-j must be whole numbers separated by commas, got ''"),
        (["-j", "1,x", "one"], "-j must be whole numbers separated by commas, got '1,x'"),
        (["-n", "1,2", "one"], "-n must be a whole number, got '1,2'"),
        (["-r", "0", "one"], "-r must be 1 or more, got 0"),
    ],
)
def test_wrong_usage_is_explained_and_measures_nothing(bench, tmp_path, arguments, said):
    ran = bench(*arguments)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "usage:" in ran.stderr
    assert "tokens\n" not in ran.stderr.partition("usage:")[0]
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("prefix", ["one/manifest.json/b", "out"])
def test_a_place_that_takes_no_results_is_told_before_anything_is_measured(bench, tmp_path, prefix):
    (tmp_path / "out.json").mkdir()
    ran = bench("-o", prefix, "-j", "1", "-p", "8", "one")
    assert ran.returncode == 2
    error, hint = ran.stderr.splitlines()
    assert error.endswith(" cannot be written")
    assert hint.startswith(" hint: ")


def test_where_everything_failed_the_old_results_stay(bench, tmp_path):
    for name in ("b.csv", "b.json"):
        (tmp_path / name).write_text("old")
    ran = bench("-o", "b", "-j", "1", "-p", "8", "broken")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "nothing was measured" in ran.stderr
    assert [(tmp_path / name).read_text() for name in ("b.csv", "b.json")] == ["old", "old"]


def test_what_is_no_artifact_is_told_in_two_lines(bench):
    ran = bench("missing")
    assert ran.returncode == 2
    error, hint = ran.stderr.splitlines()
    assert error == "error: missing is not an artifact: it has no manifest.json"
    assert hint.startswith(" hint: ")


def test_a_missing_program_is_told_with_the_variable_that_names_it(bench):
    ran = bench("-j", "1", "one", MLC_COMPILE="no-such-program")
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: no-such-program is not on the PATH\n"
        " hint: say where it is: MLC_COMPILE=.venv/bin/mlc-compile\n"
    )


def test_a_program_may_lie_in_a_directory_with_a_blank(bench, tmp_path):
    program = tmp_path / "a directory" / "mlc-compile"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{STAND_IN}")
    program.chmod(0o755)
    ran = bench("-o", "b", "-j", "1", "-p", "8", "one", MLC_COMPILE=str(program))
    assert ran.returncode == 0, ran.stderr


def test_all_cores_are_those_that_we_may_use(bench, tmp_path):
    nproc = tmp_path / "nproc"
    nproc.write_text("#!/bin/sh\necho 3\n")
    nproc.chmod(0o755)
    ran = bench("-o", "b", "-p", "8", "one", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ran.returncode == 0, ran.stderr
    assert [row["threads"] for row in table(tmp_path / "b.csv") if row["tokens"] == "8"] == [
        "1",
        "3",
    ]


def test_one_thread_is_singular(bench):
    ran = bench("-o", "b", "-j", "1,2", "-p", "8", "one")
    assert "one: 1 thread, 8 tokens\n" in ran.stderr
    assert "one: 2 threads, 8 tokens\n" in ran.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_goes_to_stdout(bench, option):
    ran = bench(option)
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage:")
