"""Records and workloads: what names them, what cannot have been measured, what wins."""

import math

import msgspec
import pytest

from mlc_compile.records import Record, Workload
from mlc_compile.records.record import canonical


def test_the_order_of_facts_is_no_part_of_a_workload():
    assert Workload.of("gemm", n=1, k=2) == Workload.of("gemm", k=2, n=1)
    assert Workload.of("gemm", n=1, k=2).digest == Workload.of("gemm", k=2, n=1).digest


def test_every_fact_and_the_family_reach_the_digest():
    others = [
        Workload.of("gemv", n=1, k=2),
        Workload.of("gemm", n=1, k=3),
        Workload.of("gemm", n=1),
        Workload.of("gemm", n="1", k=2),
    ]
    digests = {one.digest for one in (Workload.of("gemm", n=1, k=2), *others)}
    assert len(digests) == 5


def test_a_title_has_the_family_then_the_numbers_then_the_words_and_no_zero():
    workload = Workload.of("cpu.gemm", scales="float16", n=6144, norm=0, k=1024, residual=1)
    assert workload.title == "cpu.gemm k=1024 n=6144 residual=1 scales=float16"


@pytest.mark.parametrize("facts", [(("n", 1), ("k", 2)), (("k", 1), ("k", 1))])
def test_facts_that_are_not_sorted_are_refused_also_when_read(facts):
    with pytest.raises(ValueError, match="not sorted by name"):
        Workload(family="gemm", facts=facts)
    text = msgspec.json.encode({"family": "gemm", "facts": facts})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Workload)


@pytest.mark.parametrize("name", ["microseconds", "default_microseconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e16])
def test_what_is_no_time_is_a_fault_that_names_it(record, name, value):
    assert record(**{name: value}).fault.startswith(f"{name} must be a time")


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_what_is_no_noise_is_a_fault(record, noise):
    assert record(noise=noise).fault.startswith("noise must be")


def test_a_sound_record_has_no_fault(record):
    assert record().fault == ""
    assert record(noise=0.0).fault == ""


@pytest.mark.parametrize(
    ("took", "noise", "wins"),
    [
        pytest.param(9.0, 0.05, True, id="by more than the noise"),
        pytest.param(9.0, 0.1, False, id="by the noise"),
        pytest.param(10.0, 0.0, False, id="equal"),
        pytest.param(11.0, 0.0, False, id="slower"),
        pytest.param(5.0, 2.0, False, id="nothing but noise"),
    ],
)
def test_a_record_wins_by_more_than_its_noise(record, took, noise, wins):
    assert record(microseconds=took, default_microseconds=10.0, noise=noise).wins is wins


@pytest.mark.parametrize("choice", [{"tile": 3}, [["Split", [], [4, None]], {"x": 1.5}]])
def test_parameters_and_traces_survive_the_trip(record, choice):
    one = record(choice=choice)
    assert msgspec.json.decode(canonical(one), type=Record) == one


HISTORY = ((0, 1.0), (3, 0.75), (8, 0.5))


def test_a_record_of_before_there_was_history_is_read_and_written_as_it_was(record):
    text = canonical(record())
    assert b"history" not in text
    assert msgspec.json.decode(text, type=Record).history == ()


def test_history_survives_the_trip_and_is_part_of_the_record(record):
    one = record(history=HISTORY)
    assert msgspec.json.decode(canonical(one), type=Record) == one != record()


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_a_history_that_cannot_have_been_measured_is_a_fault(record, ratio):
    assert record(history=HISTORY).fault == ""
    assert record(history=((0, 1.0), (1, ratio))).fault.startswith("history must have")
