"""`mlc-compile tune` and `build --tune`: real trials on the nano model, and what is refused."""

import json
import signal
import subprocess
import sys
from subprocess import PIPE

import psutil
import pytest

from mlc_compile.cli.tune import limit
from mlc_compile.cli.values import duration
from mlc_compile.errors import ConfigError
from mlc_compile.target import find_target


def test_tuning_measures_and_says_so_line_by_line(cli, nano_checkpoint, tmp_path):
    asked = ["--trials", 3, "--task", "int8_gemv*n=256*", "--json", "--cache-dir", tmp_path]
    ran = cli("tune", nano_checkpoint, *asked)
    assert ran.code == 0, ran.err
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [e["event"] for e in events if e["event"] != "record"] == [
        "tasks",
        *["trial"] * 3,
        "round",
        "result",
    ]
    result = events[-1]["result"]
    (task,) = result["tasks"]
    assert task["trials"] == result["trials"] == 3
    assert task["default_microseconds"] > 0
    prepares = "mlc.round_act" if find_target("cpu").bf16_tiles else "mlc.quantize_act"
    assert prepares in {one["name"] for one in result["untunable"]}
    assert set(result["roof"]["ops_s"]) <= {"int8", "float32"} != set()
    assert task["roof_share"] > 0
    bound = {"memory": "of the bandwidth", "arithmetic": "of the peak"}[task["bound"]]
    assert bound in task["finding"]


def test_an_interrupt_exits_with_130_and_leaves_no_process(nano_checkpoint, tmp_path):
    command = [sys.executable, "-m", "mlc_compile", "tune", str(nano_checkpoint), "--json"]
    options = ["--task", "int8_gemv*n=256*", "--trials", "24", "--cache-dir", str(tmp_path)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=PIPE) as process:
        kinds = (json.loads(line)["event"] for line in process.stdout)
        assert next(kind for kind in kinds if kind == "trial")
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 130
    assert not psutil.wait_procs(children, timeout=10)[1]
    samples = next((tmp_path / "samples").rglob("*.jsonl"))
    assert json.loads(samples.read_bytes().splitlines()[1])["family"] == "cpu.int8_gemv"


def test_build_tunes_first_and_prints_its_own_result_alone(cli, nano_checkpoint, tmp_path):
    ran = cli("build", nano_checkpoint, "--tune", "1s", "-o", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["artifacts"]
    assert "trials in" in ran.err


@pytest.mark.parametrize(
    ("target", "needs"),
    [
        ("cuda-sm90", "an NVIDIA GPU of architecture sm_90"),
        ("metal", "a Mac with an Apple GPU"),
        ("vulkan", "a Vulkan driver"),
        ("webgpu", "a browser with WebGPU"),
        ("cpu-aarch64", "it is for aarch64"),
    ],
)
def test_a_device_that_is_not_here_is_named(here, nano_checkpoint, target, needs):
    ran = here("tune", nano_checkpoint, "--target", target, "--trials", 1)
    assert ran.code == 4
    assert needs in ran.err


def test_an_instruction_set_that_is_not_here_is_named(monkeypatch):
    from mlc_compile.driver import tune
    from mlc_compile.errors import TargetError

    row = find_target("cpu-x86-64-v4")
    monkeypatch.setattr(tune, "triple_mismatch", lambda _triple: None)
    monkeypatch.setattr(tune, "missing_features", lambda _required: ("avx512f", "avx512_vnni"))
    with pytest.raises(TargetError, match="this CPU lacks avx512f, avx512_vnni"):
        tune.require_here(row)


def test_what_another_machine_could_measure_is_hinted_at(here, nano_checkpoint):
    ran = here("tune", nano_checkpoint, "--target", "cpu-aarch64", "--trials", 1)
    assert "--rpc" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "nothing-like-it"], "no task matches"),
        (["--time", "soon"], "--time must be a time"),
        (["--time", "0m"], "--time must be more than zero"),
        (["--time", "5"], "--time needs a unit, got '5'"),
        (["--target", "cpu-x86-64-v2+v3"], "each is tuned by itself"),
    ],
)
def test_what_cannot_be_asked_for_is_a_usage_error(here, nano_checkpoint, arguments, said):
    ran = here("tune", nano_checkpoint, *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_locked_builds_do_not_tune(here, nano_checkpoint):
    assert here("build", nano_checkpoint, "--tune", "1m", "--locked").code == 2


def test_times():
    assert [duration(t, "--time") for t in ("90s", "20m", "1.5h")] == [90, 1200, 5400]
    assert (limit(None, None), limit(None, 5), limit("2m", 5)) == (1200, None, 120)
    with pytest.raises(ConfigError):
        duration("20", "--time")
