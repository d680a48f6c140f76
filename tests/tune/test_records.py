"""Records in a compilation: used where they name a point, told of, and without effect elsewhere."""

import json

import pytest
import tvm

from mlc_compile.driver.compile import compile_model
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.passes import events
from mlc_compile.records import Chosen, Record, RecordStore, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.schedule.lower_operators import LowerOperators
from mlc_compile.target import find_target
from mlc_compile.tune.tasks import before_kernels, read_tasks

V4 = find_target("cpu-x86-64-v4")
CHOICE = {"m": 2, "blocks": 1, "parts": 1, "ahead": 0}


@pytest.fixture(scope="module")
def operators(nano_plan):
    """The nano model before its kernels, and the family of its first gemm."""
    mod, plan = nano_plan(V4.name, "q4f16_1")
    with tvm_target(V4):
        mod = before_kernels(mod, plan)
        families = [task.family for task in read_tasks(mod, plan).tasks]
    gemm = next(f for f in families if f.workload.family == "cpu.int8_gemm")
    return mod, gemm


def record(family, **changed):
    """A record of the family, as a run of tuning writes it."""
    fields = {
        "workload": family.workload,
        "space": family.version,
        "choice": CHOICE,
        "microseconds": 50.0,
        "default_microseconds": 100.0,
        "noise": 0.01,
        "trials": 3,
        "seed": 0,
    }
    return Record(**{**fields, **changed})


def lowered(mod, *records):
    """The module as kernels, and what was told of records."""
    out = LowerOperators(V4, Chosen(records))(mod)
    return out, [e for e in events.read(out) if e.source == "Records"]


def test_a_record_chooses_the_point(operators):
    mod, family = operators
    out, (event,) = lowered(mod, record(family))
    assert (event.outcome, "2.00 times as fast" in event.reason) == ("done", True)
    tuned = out[event.subject]
    wanted = family.build(family.space.point(CHOICE))
    tvm.ir.assert_structural_equal(tuned.without_attr("global_symbol"), wanted)


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        pytest.param({"space": 1}, True, id="of another space"),
        pytest.param({"choice": {**CHOICE, "m": 7}}, True, id="no such point"),
        pytest.param({"choice": {"m": 2}}, True, id="half a point"),
        pytest.param({"choice": [["a", "trace"]]}, True, id="no choice of knobs"),
    ],
)
def test_a_record_that_names_no_point_changes_nothing(operators, changed, refused):
    mod, family = operators
    out, told = lowered(mod, record(family, **changed))
    plain, nothing = lowered(mod)
    assert not nothing
    assert [e.outcome for e in told] == ["refused"] * refused
    same = out.with_attr(events.ATTRIBUTE, plain.attrs[events.ATTRIBUTE])
    tvm.ir.assert_structural_equal(same, plain, map_free_vars=True)


def compiled(checkpoint, out, store=None):
    """The library, and the kernels that the report says are from a record."""
    compile_model(checkpoint, V4, "q4f16_1", out, records=store)
    report = json.loads((out / "report.json").read_text())
    found = {kernel["name"] for kernel in report["kernels"] if kernel["origin"] == "record"}
    return (out / "lib.so").read_bytes(), found


def test_a_library_from_records_is_the_same_wherever_it_is_made(
    nano_checkpoint, operators, tmp_path
):
    _, family = operators
    store, foreign = RecordStore(tmp_path / "tuned"), RecordStore(tmp_path / "foreign")
    store.append(partition_of(V4, available_cores()), [record(family)])
    elsewhere = partition_of(find_target("cpu-x86-64-v3"), available_cores())
    foreign.append(elsewhere, [record(family)])
    plain, none = compiled(nano_checkpoint, tmp_path / "a")
    tuned, one = compiled(nano_checkpoint, tmp_path / "b", store)
    again, _ = compiled(nano_checkpoint, tmp_path / "somewhere" / "else", store)
    unmoved, no_record = compiled(nano_checkpoint, tmp_path / "c", foreign)
    assert (len(one), none, no_record) == (1, set(), set())
    assert tuned == again != plain
    assert unmoved == plain


HISTORY = ((0, 1.0), (2, 0.5))


def test_a_record_of_another_default_is_told_of_once_and_not_when_there_is_one_of_this(operators):
    mod, family = operators
    _, (event,) = lowered(mod, record(family, space=1))
    assert event.reason.startswith("tuned beside another default than the rules choose now")
    _, (used,) = lowered(mod, record(family, space=1), record(family))
    assert used.outcome == "done"


def test_a_record_that_no_longer_replays_is_in_the_report_with_its_kernel(
    nano_checkpoint, operators, tmp_path
):
    _, family = operators
    report = reported(nano_checkpoint, tmp_path, record(family, choice={**CHOICE, "m": 7}))
    (event,) = [e for e in report["events"] if e["source"] == "Records"]
    assert event["outcome"] == "refused"
    assert event["reason"].startswith("no point of its space: ")
    assert "'m': 7" in event["reason"]
    kernel = next(k for k in report["kernels"] if k["name"] == event["subject"])
    assert (kernel["origin"], report["tuning"]) == ("rule", [])


def test_the_report_has_the_curve_of_each_record_that_it_used(nano_checkpoint, operators, tmp_path):
    """(default 100 us, best 50 us at the second of three trials)"""
    _, family = operators
    report = reported(nano_checkpoint, tmp_path, record(family, history=HISTORY))
    (kernel,) = [k for k in report["kernels"] if k["origin"] == "record"]
    assert kernel["how"].startswith("m 2, blocks 1")
    assert kernel["how"].endswith("2.00 times as fast as the rules' choice when tuned")
    (curve,) = report["tuning"]
    assert curve["kernel"] == kernel["name"]
    assert curve["trials"] == [0, 2, 3]
    assert curve["seconds"] == pytest.approx([1e-4, 5e-5, 5e-5])


def test_equal_records_make_equal_reports_and_history_changes_no_code(
    nano_checkpoint, operators, tmp_path
):
    _, family = operators
    tuned = record(family, history=HISTORY)
    one, again, other = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    reported(nano_checkpoint, one, tuned)
    reported(nano_checkpoint, again, tuned)
    reported(nano_checkpoint, other, record(family))
    for name in ("report.json", "manifest.json", "lib.so"):
        assert (one / "out" / name).read_bytes() == (again / "out" / name).read_bytes()
    assert (one / "out" / "lib.so").read_bytes() == (other / "out" / "lib.so").read_bytes()


def reported(checkpoint, place, one):
    """The report of a compilation with that record."""
    store = RecordStore(place / "cache")
    store.append(partition_of(V4, available_cores()), [one])
    compile_model(checkpoint, V4, "q4f16_1", place / "out", records=store)
    return json.loads((place / "out" / "report.json").read_text())
