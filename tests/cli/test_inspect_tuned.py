"""A tuning record's way through the real commands: into the library, and told by `inspect`."""

import msgspec
import pytest

from mlc_compile.records import Record, RecordStore, Workload, partition_of
from mlc_compile.target import find_target

TARGET = "cpu-x86-64-v4"
HISTORY = [[0, 1.0], [2, 0.5]]


@pytest.fixture(scope="module")
def space(nano_checkpoint):
    """The workload of the nano model's first int8_gemm, the version of its space, and a choice."""
    import subprocess
    import sys

    asked = subprocess.run(
        [sys.executable, "-c", QUESTION, str(nano_checkpoint)], capture_output=True, check=True
    )
    return msgspec.json.decode(asked.stdout)


# In a process of its own: this one has no compiler.
QUESTION = f"""
import sys
from pathlib import Path
import msgspec
from mlc_compile.driver.compile import import_model, prepare
from mlc_compile.driver.job import DEFAULTS
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.target import find_target
from mlc_compile.tune.tasks import tasks_of

row = find_target("{TARGET}")
job = prepare(read_subject(Path(sys.argv[1])), row, "q4f16_1", DEFAULTS)
with tvm_target(row):
    found = tasks_of(*import_model(job, row)).tasks
family = next(t.family for t in found if t.family.workload.family == "cpu.int8_gemm")
point = next(p for p in family.space.points() if p != family.space.default)
said = [family.workload, family.version, family.space.choice(point)]
sys.stdout.buffer.write(msgspec.json.encode(said))
"""


def test_inspect_tells_which_kernels_a_record_decided(cli, nano_checkpoint, space, tmp_path):
    workload, version, choice = space
    one = Record(
        workload=msgspec.convert(workload, Workload),
        space=version,
        choice=choice,
        microseconds=50.0,
        default_microseconds=100.0,
        noise=0.01,
        trials=3,
        seed=0,
        history=msgspec.convert(HISTORY, tuple[tuple[int, float], ...]),
    )
    RecordStore(tmp_path / "cache").append(partition_of(find_target(TARGET), 1), [one])
    asked = ["-t", TARGET, "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache"]
    ran = cli("build", nano_checkpoint, *asked)
    assert ran.code == 0, ran.err
    artifact = ran.out.strip()
    assert f"{TARGET}: kernels written as tuning records say: 1" in ran.err
    shown = cli("inspect", artifact).out
    told = ", ".join(f"{name} {value}" for name, value in choice.items())
    gain = "2.00 times as fast as the rules' choice when tuned"
    assert "1 by a tuning record, " in shown
    assert f"{told}: {gain}" in shown
    kernels = cli("inspect", artifact, "--json").json["kernels"]
    (tuned,) = [k for k in kernels if k["origin"] == "record"]
    assert tuned["how"] == f"{told}: {gain}"
    page = tmp_path / "report.html"
    assert cli("inspect", artifact, "--html", page).code == 0
    assert "<h2>Tuning</h2>" in page.read_text()
