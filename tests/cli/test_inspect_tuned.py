"""A tuning record's way through the real commands: into the library, and told by `inspect`."""

import json
import os
from pathlib import Path

import pytest

from mlc_compile.cli.app import invoke
from mlc_compile.driver.compile import import_model, prepare
from mlc_compile.driver.job import DEFAULTS
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.records import Record, RecordStore, partition_of
from mlc_compile.target import find_target
from mlc_compile.tune.tasks import tasks_of

TARGET = "cpu-x86-64-v4"
HISTORY = ((0, 1.0), (2, 0.5))


@pytest.fixture
def space(nano_checkpoint):
    """The space of the nano model's first int8_gemm, and a point that the rules do not choose."""
    row = find_target(TARGET)
    job = prepare(read_subject(nano_checkpoint), row, "q4f16_1", DEFAULTS)
    with tvm_target(row):
        found = tasks_of(*import_model(job, row)).tasks
    family = next(t.family for t in found if t.family.workload.family == "cpu.int8_gemm")
    return family, next(p for p in family.space.points() if p != family.space.default)


@pytest.fixture
def told(capsys):
    """`told("inspect", ...)`: what the command said in this process, on stdout and on stderr."""

    def run(*words):
        capsys.readouterr()
        assert invoke([*map(str, words)]) == 0
        return capsys.readouterr()

    return run


def test_inspect_tells_which_kernels_a_record_decided(told, nano_checkpoint, space, tmp_path):
    family, point = space
    choice = family.space.choice(point)
    one = Record(
        workload=family.workload,
        space=family.version,
        choice=choice,
        microseconds=50.0,
        default_microseconds=100.0,
        noise=0.01,
        trials=3,
        seed=0,
        history=HISTORY,
    )
    cache = Path(os.environ["MLC_COMPILE_CACHE"])
    RecordStore(cache).append(partition_of(find_target(TARGET), 1), [one])
    ran = told("build", nano_checkpoint, "-t", TARGET, "-o", tmp_path / "out")
    artifact = ran.out.strip()
    assert f"{TARGET}: kernels written as tuning records say: 1" in ran.err
    shown = told("inspect", artifact).out
    how = ", ".join(f"{name} {value}" for name, value in choice.items())
    gain = "2.00 times as fast as the rules' choice when tuned"
    assert "1 by a tuning record, " in shown
    assert f"{how}: {gain}" in shown
    kernels = json.loads(told("inspect", artifact, "--json").out)["kernels"]
    (tuned,) = [k for k in kernels if k["origin"] == "record"]
    assert tuned["how"] == f"{how}: {gain}"
    page = tmp_path / "report.html"
    told("inspect", artifact, "--html", page)
    assert "<h2>Tuning</h2>" in page.read_text()
