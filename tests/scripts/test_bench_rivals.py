"""scripts/bench_rivals.sh with stand-ins for all engines: what they are asked, what is made of it.

The artifact is real, and so is the reading of the memory where it is asked for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from mlc_compile.artifact import KVDtype

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "bench_rivals.sh"

# A machine that is three times as fast in every second round, for whoever is measured then.
MACHINE = """
import json, pathlib, sys
log = pathlib.Path(__file__).with_suffix(".log")
words = sys.argv[1:]
before = log.read_text().splitlines() if log.exists() else []
log.write_text("\\n".join([*before, json.dumps(words)]))
turns = [w for w in map(json.loads, before) if w == words]
machine = 3 if len(turns) % 2 else 1
option = dict(zip(words, words[1:]))
"""

# Answers as `mlc-compile bench --json` does.
MLC_COMPILE = """
threads, depth = int(option["--threads"]), int(option["--depth"])
row = {"depth": depth, "threads": threads}
results = [{**row, "phase": "prefill", "tokens": int(n), "tok_s": 600.0 * threads * machine}
           for n in option["--prompt-tokens"].split(",")]
if option["--gen-tokens"] != "0":
    tokens = int(option["--gen-tokens"])
    results.append({**row, "phase": "decode", "tokens": tokens, "tok_s": 90.0 * machine})
print(json.dumps({"results": results}))
"""

# As llama-bench of llama.cpp b7000 writes `-o json`, the fields that nobody reads left out.
LLAMA_BENCH = """
if "broken" in option["-m"]:
    print("main: loading", file=sys.stderr)
    sys.exit("error: failed to load model")
def test(prompt, gen, speed):
    return {"build_commit": "a0f98dd6", "model_filename": option["-m"], "model_type": "qwen3 0.6B",
            "model_size": 2**20 * 326, "n_threads": int(option["-t"]), "type_k": "f16",
            "n_prompt": prompt, "n_gen": gen, "n_depth": int(option["-d"]),
            "avg_ns": 1, "avg_ts": speed * machine, "stddev_ts": 0.0}
tests = [test(int(n), 0, 200.0) for n in option["-p"].split(",") if n != "0"]
if option["-n"] != "0":
    tests.append(test(0, int(option["-n"]), 60.0))
print(json.dumps(tests))
"""

# A python without OpenVINO if it is called so, else one that has measured.
OPENVINO_PYTHON = """
if words[0] == "-c":
    sys.exit("without" in sys.argv[0])
script, model, prompts, generate, depth, threads, kv = words
print(json.dumps({"figures": {f"tg{generate}": 45.0 * machine}, "weights_bytes": 2**20 * 373}))
"""


class Bench:
    """The script, its stand-ins, and what these were asked."""

    def __init__(self, place, artifact):
        self.place, self.artifact = place, artifact
        self.engines = {
            "mlc-compile": MLC_COMPILE,
            "llama-bench": LLAMA_BENCH,
            "openvino-python": OPENVINO_PYTHON,
            "python-without": OPENVINO_PYTHON,
        }
        for name, code in self.engines.items():
            (place / name).write_text(f"#!{sys.executable}\n{MACHINE}{code}")
            (place / name).chmod(0o755)
        for gguf in ("q4_0", "q4_k", "broken"):
            (place / f"{gguf}.gguf").touch()
        (place / "int4-g128").mkdir()
        (place / "int4-g128" / "openvino_model.bin").touch()

    def run(self, *options, artifact=None):
        """The memory is not read unless `options` ask for it, so that a test is quick."""
        command = [SCRIPT, artifact or self.artifact, "--pairs", "0", *options]
        tools = {"MLC_COMPILE": "./mlc-compile", "PYTHON": sys.executable}
        return subprocess.run(
            list(map(str, command)),
            cwd=self.place,
            env=os.environ | tools,
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self, engine):
        """The calls of a stand-in, as lists of words."""
        lines = (self.place / f"{engine}.log").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def bench(tmp_path, nano_artifact):
    return Bench(tmp_path, nano_artifact)


LLAMA = ("--llama-bench", "./llama-bench", "--gguf", "q4_0.gguf")
SMALL = ("--prompts", "16", "--generate", "8", "--threads", "1", "--rounds", "2")


def rows(stdout, head):
    """Cells of the rows of the table whose first cell is `head`."""
    lines = stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append(line.strip("| ").split(" | "))
    return [table[0], *table[2:]]


def test_ratios_are_taken_within_a_round(bench):
    ran = bench.run(*SMALL, *LLAMA)
    assert ran.returncode == 0, ran.stderr
    heads, llama = rows(ran.stdout, "ours / theirs")
    assert heads == ["ours / theirs", "weights MiB", "pp16 t1", "tg8 t1"]
    # The machine was three times as fast in the second round, for both of us.
    assert llama == ["llama.cpp q4_0", "326", "3.00 [3.00 to 3.00]", "1.50 [1.50 to 1.50]"]
    _, ours, theirs = rows(ran.stdout, "tok/s")
    assert ours[2:] == ["1200", "180"]
    assert theirs[1:] == ["326", "400", "120"]


def test_six_rounds_give_a_confidence_interval(bench):
    ran = bench.run(*SMALL, *LLAMA, "--rounds", "6")
    assert rows(ran.stdout, "ours / theirs")[1][2] == "3.00 (3.00 to 3.00)"


def test_every_round_is_in_the_json_and_the_table_can_be_made_again(bench):
    ran = bench.run(*SMALL, *LLAMA, "-o", "out")
    run = json.loads((bench.place / "out.json").read_text())
    first, second = run["turns"]
    assert [t["figures"]["llama.cpp q4_0"]["tg8 t1"] for t in (first, second)] == [60, 180]
    assert list(first["figures"]) == list(reversed(second["figures"]))  # the order alternates
    assert run["weights_bytes"]["llama.cpp q4_0"] == 326 << 20
    assert (bench.place / "out.md").read_text() == ran.stdout
    again = [sys.executable, SCRIPT.with_name("bench_table.py"), bench.place / "out.json"]
    assert subprocess.check_output(again, text=True) == ran.stdout


def test_a_filled_cache_is_as_large_and_read_by_flash_attention(bench):
    depths = ("--depth", "0,64", "--rounds", "1", "--openvino-python", "./openvino-python")
    ran = bench.run(*SMALL, *LLAMA, *depths, "--openvino", "int4-g128")
    assert ran.returncode == 0, ran.stderr
    shallow, deep = bench.asked("llama-bench")
    assert " ".join(shallow) == "-m q4_0.gguf -p 16 -n 8 -t 1 -d 0 -fa 0 -r 1 -o json"
    assert " ".join(deep).endswith("-t 1 -d 64 -fa 1 -ctk f16 -ctv f16 -r 1 -o json")
    assert [words[-2:] for words in bench.asked("openvino-python")[1:]] == [["1", "f16"]] * 2
    heads, llama, openvino = rows(ran.stdout, "ours / theirs")
    assert heads[2:] == ["pp16 t1", "tg8 t1", "pp16 d64 t1", "tg8 d64 t1"]
    assert llama[2:] == ["3.00", "1.50", "3.00", "1.50"]
    assert openvino[:2] == ["OpenVINO int4-g128", "373"]
    assert openvino[3] == "2.00"


def test_every_type_of_our_cache_has_its_like_elsewhere(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from bench_contenders import LLAMA_KV, OPENVINO_KV

    assert set(LLAMA_KV) == set(OPENVINO_KV) == set(get_args(KVDtype))


def test_the_share_of_the_memory_counts_weights_and_cache(bench):
    bench.run(*SMALL, *LLAMA, "--depth", "0,256", "--rounds", "1", "--pairs", "1", "-o", "out")
    run = json.loads((bench.place / "out.json").read_text())
    manifest = json.loads((bench.artifact / "manifest.json").read_text())
    kv = manifest["kv"]
    token = 2 * 2 * kv["layers"] * kv["kv_heads"] * kv["head_dim"]  # float16 keys and values
    shallow, deep = (run["bytes_per_token"][column] for column in ("tg8 t1", "tg8 d256 t1"))
    assert deep - shallow == 256 * token
    assert shallow > sum(part["nbytes"] for t in manifest["plan"]["tensors"] for part in t["parts"])
    turn = run["turns"][1]
    assert set(turn["reads"]) == {"bench", "C"}
    faster = max(turn["reads"], key=lambda name: sum(t["reads"][name][0] for t in run["turns"]))
    share = turn["figures"][run["ours"]]["tg8 d256 t1"] * deep / turn["reads"][faster][0]
    table = rows((bench.place / "out.md").read_text(), "we decode")
    assert [row[0] for row in table[1:]] == ["tg8 t1", "tg8 d256 t1"]
    assert table[2][2] == f"{share:.0%}"


def test_the_memory_is_read_as_often_as_asked(bench):
    bench.run(*SMALL, *LLAMA, "--pairs", "3", "--cc", "no-such-cc", "-o", "out")
    turns = json.loads((bench.place / "out.json").read_text())["turns"]
    assert sum(len(turn["reads"]["bench"]) for turn in turns) == 3
    assert turns[-1]["figures"] == {}


def test_no_round_begins_that_would_end_too_late(bench):
    ran = bench.run(*SMALL, *LLAMA, "--minutes", "0.0001", "--rounds", "9")
    assert ran.returncode == 0
    assert "1 of 9 rounds fit into the time" in ran.stderr
    assert len(bench.asked("llama-bench")) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "llama.cpp is left out: --llama-bench and --gguf would name it."),
        ((), "OpenVINO is left out: --openvino-python and --openvino would name it."),
        (
            ("--pairs", "1", "--cc", "no-such-cc"),
            "the reader in C is left out: there is no compiler no-such-cc.",
        ),
        (
            ("--llama-bench", "no-such-program", "--gguf", "q4_0.gguf"),
            "llama.cpp q4_0 is left out: there is no program no-such-program.",
        ),
        (
            ("--llama-bench", "./llama-bench", "--gguf", "gone.gguf"),
            "llama.cpp gone is left out: there is no file gone.gguf.",
        ),
        (
            ("--openvino-python", "./python-without", "--openvino", "int4-g128"),
            "OpenVINO int4-g128 is left out: ./python-without has no openvino_genai.",
        ),
        (
            ("--openvino-python", "./openvino-python", "--openvino", "gone"),
            "OpenVINO gone is left out: there is no file gone/openvino_model.bin.",
        ),
        (
            ("--tvm-default", "gone"),
            "plain TVM is left out: there is no file gone/config.json.",
        ),
    ],
)
def test_a_rival_that_is_not_here_is_named_in_a_sentence(bench, options, said):
    ran = bench.run(*SMALL, *options)
    assert ran.returncode == 0, ran.stderr
    assert said in ran.stderr.splitlines()
    assert f"- {said}" in ran.stdout.splitlines()
    assert rows(ran.stdout, "tok/s")[1][2:] == ["1200", "180"]


def test_a_rival_that_fails_is_left_out_from_then_on(bench):
    ran = bench.run(*SMALL, *LLAMA, "--gguf", "broken.gguf")
    assert ran.returncode == 0, ran.stderr
    told = "llama.cpp broken is left out: llama-bench fails: error: failed to load model."
    assert ran.stdout.count(told) == 1
    assert sum("broken.gguf" in words for words in bench.asked("llama-bench")) == 1
    assert [row[0] for row in rows(ran.stdout, "ours / theirs")[1:]] == ["llama.cpp q4_0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--threads", "one"), "argument --threads: must be a list such as 1,2, got 'one'"),
        (("--threads", "0"), "there is nothing to measure"),
        (("--prompts", "0", "--generate", "0"), "there is nothing to measure"),
        (("--depth", "100000"), "the tests need 100016 tokens, but the context of"),
        (("-o", "gone/out"), "there is no directory gone"),
        (("--mlc-compile", "no-such-program"), "no-such-program is not on the PATH"),
        ((*LLAMA, "--gguf", "q4_0.gguf"), "two have one name among q4_0, q4_0"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(bench, options, said):
    ran = bench.run(*SMALL, *options)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(bench.place.glob("*.log"))


def test_what_is_no_artifact_is_told_in_two_lines(bench):
    ran = bench.run(*SMALL, artifact="int4-g128")
    assert ran.returncode == 2
    error, hint = ran.stderr.splitlines()
    assert error.startswith("error: int4-g128 must be an artifact")
    assert hint.startswith(" hint: ")


def test_artifacts_of_ours_of_one_name_are_told_apart_by_their_paths(bench):
    (bench.place / "tuned").symlink_to(bench.artifact.parent.parent)
    other = Path("tuned", *bench.artifact.parts[-2:])
    ran = bench.run(other, *SMALL, "--rounds", "1")
    assert [row[0] for row in rows(ran.stdout, "ours / theirs")[1:]] == [f"ours {other}"]


@pytest.mark.slow
def test_plain_tvm_runs_once_beside_the_first_of_ours(bench, nano_checkpoint):
    ran = bench.run(*SMALL, *LLAMA, "--tvm-default", nano_checkpoint)
    assert ran.returncode == 0, ran.stderr
    heads, llama, tvm = rows(ran.stdout, "ours / theirs")
    assert heads[2:] == ["pp16 t1", "tg8 t1", "pp32 t1", "tg4 t1"]
    assert llama[2:4] == ["3.00 [3.00 to 3.00]", "1.50 [1.50 to 1.50]"]
    assert tvm[0] == "TVM default, float32"
    assert [bool(cell.strip()) for cell in tvm[2:]] == [False, False, True, True]


def test_a_python_without_us_is_told_which_to_use():
    bare = [sys.executable, "-S", SCRIPT.with_suffix(".py"), "artifact"]  # no site-packages
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(bare, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    error, hint = ran.stderr.splitlines()
    assert error.startswith("error: mlc_compile is not installed for")
    assert hint.endswith("PYTHON=.venv/bin/python")
