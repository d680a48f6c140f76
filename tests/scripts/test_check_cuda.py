"""scripts/check_cuda.sh with stand-ins for the GPU and the commands: what it asks and tells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "check_cuda.sh"

# An interpreter whose `-m mlc_compile...` answers as the real ones do and notes what was asked.
STAND_IN = """
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
if words[0] != "-m":
    os.execv(sys.executable, [sys.executable, *words])
with Path("asked").open("a") as file:
    print(*words[1:], file=file)
way = {"max_abs_error": 0.01, "decided": 90, "same": int(os.environ["SAME"])}
rows = [{"artifact": artifact, "phase": phase, "tokens": tokens, "tok_s": speed}
        for artifact, speed in (("out/gpu", 500), ("out/cpu", 20))
        for phase, tokens in (("prefill", 128), ("decode", 64))]
answers = {
    "targets": json.dumps([{"name": "cuda-sm90"}]),
    "build": "out/gpu\\nout/cpu",
    "bench": json.dumps({"results": rows}),
}
agreement = {"tokens": 100, "bound": 0.5, "prompt": way, "decode": way,
             "agree": way["same"] == 90, "copy_bytes_s": 2e12}
print(json.dumps(agreement) if words[1].endswith("agreement") else answers[words[2]])
"""


@pytest.fixture
def check(tmp_path):
    """`check("-Q", "q4f32_1", smi="9.0, NVIDIA H100", same=90)`: run it; what it printed."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable}\n{STAND_IN}")
    stand_in.chmod(0o755)

    def run(*arguments, smi="9.0, NVIDIA H100 80GB", same=90):
        path = tmp_path / "path"
        path.mkdir()
        if smi is not None:
            program = path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{smi}'\n")
            program.chmod(0o755)
        env = os.environ | {
            "PYTHON": str(stand_in),
            "PATH": f"{path}:/usr/bin:/bin",
            "SAME": str(same),
        }
        command = ["bash", SCRIPT, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    return run


def test_a_gpu_that_agrees_is_told_in_tables(check, tmp_path):
    ran = check("-p", "128", "-n", "64")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "asked").read_text().splitlines() == [
        "mlc_compile targets --json",
        "mlc_compile build demo --target cuda-sm90,cpu --quant q4f16_1 --activations float32 "
        "-o dist/check-cuda",
        "mlc_compile.bench.agreement out/gpu out/cpu",
        "mlc_compile bench out/gpu out/cpu --json --quiet --prompt-tokens 128 --gen-tokens 64",
    ]
    lines = ran.stdout.splitlines()
    assert lines[0] == "| NVIDIA H100 80GB and this CPU, 100 tokens | as a prompt | one by one |"
    assert "| largest error of a logit, bound 0.5 | 0.01 | 0.01 |" in lines
    assert "| equal tokens, of those decided | 90 of 90 | 90 of 90 |" in lines
    assert "| decode, 64 tokens | 500.0 | 20.0 |" in lines
    assert "copying the GPU's memory: 2,000 GB/s, read and written" in lines
    assert lines[-1] == "the GPU agrees with the CPU"


def test_a_gpu_that_does_not_agree_is_exit_code_1(check):
    ran = check(same=89)
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1] == "THE GPU DOES NOT AGREE WITH THE CPU"


def test_a_gpu_without_a_preset_gets_the_library_with_ptx(check, tmp_path):
    assert check("model", smi="12.0, NVIDIA RTX 5090\n8.6, NVIDIA A10").returncode == 0
    assert "build model --target cuda-multi,cpu" in (tmp_path / "asked").read_text()


def test_the_target_can_be_chosen(check, tmp_path):
    assert check("-t", "cuda-sm80", "-Q", "q4f32_1", "-o", "there").returncode == 0
    asked = (tmp_path / "asked").read_text()
    assert "--target cuda-sm80,cpu --quant q4f32_1 --activations float32 -o there" in asked


@pytest.mark.parametrize(
    ("arguments", "smi", "code", "said"),
    [
        pytest.param((), "", 4, "nvidia-smi finds no GPU", id="no GPU"),
        pytest.param((), None, 4, "there is no NVIDIA driver", id="no driver"),
        pytest.param(("-x",), None, 2, "unknown option -x", id="option"),
        pytest.param(("-Q",), None, 2, "-Q needs a value", id="value"),
        pytest.param(("a", "b"), None, 2, "one model at a time", id="models"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_built(
    check, tmp_path, arguments, smi, code, said
):
    ran = check(*arguments, smi=smi)
    assert ran.returncode == code
    error, hint = ran.stderr.splitlines()
    assert error.startswith(f"error: {said}")
    assert hint.startswith(" hint: ")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_needs_no_gpu(check, option):
    ran = check(option, smi=None)
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: check_cuda.sh")
