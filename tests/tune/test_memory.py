"""Samples outlive the run; what cannot be read is left out."""

import pytest

from mlc_compile.records import Workload
from mlc_compile.tune.cost_model import Sample
from mlc_compile.tune.memory import Memory
from tests.tune.conftest import PARTITION

WORK = Workload.of("test.toy", n=64)


def sample(cost, space=1):
    return Sample(WORK.family, WORK.digest, space, {"a": 1}, {"knob a": 1.0}, cost)


def test_samples_are_there_again(tmp_path):
    Memory.open(tmp_path, PARTITION).add([sample(0.5), sample(0.75, space=2)])
    again = Memory.open(tmp_path, PARTITION)
    assert again.of("test.toy") == [sample(0.5), sample(0.75, space=2)]
    assert again.about(WORK, 2) == [sample(0.75, space=2)]
    assert again.of("test.other") == []


def test_a_torn_line_is_left_out_and_does_not_take_the_next_one_along(tmp_path):
    memory = Memory.open(tmp_path, PARTITION)
    memory.add([sample(0.5), sample(0.6)])
    whole = memory.path.read_bytes()
    memory.path.write_bytes(whole[:-20])
    Memory.open(tmp_path, PARTITION).add([sample(0.7)])
    assert [s.cost for s in Memory.open(tmp_path, PARTITION).samples] == [0.5, 0.7]


@pytest.mark.parametrize("text", ["0", "-1", "1e999", '"x"'])
def test_a_cost_that_nobody_measured_is_left_out(tmp_path, text):
    memory = Memory.open(tmp_path, PARTITION)
    memory.add([sample(0.5)])
    memory.path.write_bytes(memory.path.read_bytes().replace(b"0.5", text.encode()))
    assert Memory.open(tmp_path, PARTITION).samples == []


def test_a_disk_that_takes_nothing_is_no_trouble(tmp_path):
    (tmp_path / "samples").write_text("a file in its place")
    memory = Memory.open(tmp_path, PARTITION)
    memory.add([sample(0.5)])
    assert memory.of("test.toy") == [sample(0.5)]
