"""scripts/ablate.sh with a stand-in for `mlc-compile`: builds, rounds and the table's ratios."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "ablate.sh"

# Builds write what the table reads; speed is 100 tok/s less 10 for each pass that is disabled.
# Idle changes nothing: its library is that of all passes.
STAND_IN = """
import json, pathlib, sys
command, *words = sys.argv[1:]
names = {"Fuse": "all", "Idle": "CPU", "Elsewhere": "GPU", "FuseOps": "all", "Needed": "all"}
if command == "passes":
    print(json.dumps([
        {"name": n, "targets": t, "can_be_disabled": n != "Needed"} for n, t in names.items()]))
    raise SystemExit
if command == "build":
    without = [w for before, w in zip(words, words[1:]) if before == "--disable-pass"]
    slower = len([w for w in without if w != "Idle"])
    out = pathlib.Path(words[words.index("-o") + 1]) / "m-q" / "cpu"
    out.mkdir(parents=True)
    files = [{"path": "lib.so", "sha256": str(slower)}]
    manifest = {"libraries": [{"path": "lib.so"}], "files": files}
    (out / "manifest.json").write_text(json.dumps(manifest))
    traffic = [{"function": f, "launches": 5 + slower, "written_bytes": 1000 * (1 + slower)}
               for f in ("decode", "prefill")]
    (out / "report.json").write_text(json.dumps({"traffic": traffic}))
    (out / "speed").write_text(str(100 - 10 * slower))
    print(out)
if command == "bench":
    rounds, results = int(words[words.index("--rounds") + 1]), []
    for out in words[:words.index("--json")]:
        speed = float((pathlib.Path(out) / "speed").read_text())
        base = speed == 100 and not results
        interval = None if rounds < 6 or base else [speed / 100 - 0.01, speed / 100 + 0.01]
        results += [{"artifact": out, "phase": p, "tok_s": speed,
                     "vs_first": {"median": speed / 100, "interval": interval}}
                    for p in ("decode", "prefill")]
    print(json.dumps({"results": results}))
"""


@pytest.fixture
def ablate(tmp_path):
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)

    def run(*arguments, python=sys.executable):
        tool = {"MLC_COMPILE": f"{sys.executable} {stand_in}", "PYTHON": python}
        command = ["bash", SCRIPT, *arguments]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | tool,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_table_has_each_pass_of_ours_that_the_target_runs(ablate, tmp_path):
    ran = ablate("-o", "a", "model")
    assert ran.returncode == 0, ran.stderr
    rows = [line.strip("| ").split(" | ") for line in ran.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "all passes",
        "without Fuse",
        "without Idle (the same library)",
        "without all of these",
    ]
    fuse = rows[1]
    assert fuse[1:4] == ["6", "6", "2.0 (+0%)"]  # the last lacks Fuse too
    assert fuse[5:7] == ["90.0", "0.900 (0.890 to 0.910)"]
    assert rows[0][5:7] == ["100.0", "1.000"]
    assert rows[0][3] == "1.0 (-50%)"
    assert (tmp_path / "a.md").read_text() == ran.stdout
    records = json.loads((tmp_path / "a.json").read_text())
    assert [[row["phase"] for row in r["speeds"]] for r in records] == [["decode", "prefill"]] * 4


def test_with_fewer_rounds_there_is_no_interval(ablate):
    ran = ablate("-r", "2", "model")
    assert ran.returncode == 0, ran.stderr
    assert "| 90.0 | 0.900 |" in ran.stdout


def test_without_rounds_only_bytes_are_told(ablate):
    ran = ablate("-r", "0", "model")
    assert ran.returncode == 0, ran.stderr
    assert "1.0 (-50%)" in ran.stdout
    assert "0.900" not in ran.stdout


def test_without_the_list_of_passes_nothing_is_built(ablate):
    ran = ablate("-r", "0", "model", python="false")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one model"),
        (["one", "two"], "one model"),
        (["-x", "model"], "unknown option -x"),
        (["-r"], "-r needs a value"),
        (["model", "-r", "1"], "options go before MODEL: -r"),
        (["-r", "abc", "model"], "-r must be a whole number, got 'abc'"),
        (["-r", "1.5", "model"], "-r must be a whole number, got '1.5'"),
        (["-r", "", "model"], "-r must be a whole number, got ''"),
        (["-r", "-1", "model"], "-r must be a whole number, got '-1'"),
        (["-r", "010", "model"], "-r must be a whole number, got '010'"),
        (["-p", "0", "model"], "-p must be 1 or more, got 0"),
        (["-p", "8,16", "model"], "-p must be a whole number, got '8,16'"),
        (["-n", "x", "model"], "-n must be a whole number, got 'x'"),
        (["-j", "9999", "model"], "-j must be 1 to "),
        (["-t", "metal,cpu", "model"], "-t must be one target, got 'metal,cpu'"),
    ],
)
def test_misuse_is_told_with_the_usage_before_anything_is_built(ablate, arguments, said):
    ran = ablate(*arguments)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "building" not in ran.stderr
    assert "usage: ablate.sh" in ran.stderr
    assert ablate("--help").returncode == 0


def test_a_place_that_takes_no_results_is_told_before_anything_is_built(ablate, tmp_path):
    (tmp_path / "file").write_text("")
    ran = ablate("-o", "file/a", "model")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: file/a.md cannot be written\n")
