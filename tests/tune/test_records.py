"""Records in a compilation: used where they name a point, told of, and without effect elsewhere."""

import json
from types import SimpleNamespace

import pytest
import tvm

from mlc_compile.driver.compile import compile_model
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.emit.keeper import kept_by
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


HISTORY = ((0, 1.0), (2, 0.5))


@pytest.fixture(scope="module")
def kept():
    """A keeper of kernels for this module: LLVM compiles each once."""
    objects = {}

    def take(kernel, make):
        if kernel not in objects:
            objects[kernel] = make()
        return objects[kernel]

    return SimpleNamespace(take=take)


@pytest.fixture(scope="module")
def compiled(nano_checkpoint, kept, tmp_path_factory):
    """`compiled(*records)`: the directory of a library, from a store of them."""

    def run(*records, row=V4):
        place = tmp_path_factory.mktemp("records")
        store = RecordStore(place / "cache")
        store.append(partition_of(row, available_cores()), records)
        with kept_by(kept):
            compile_model(nano_checkpoint, V4, "q4f16_1", place / "out", records=store)
        return place / "out"

    return run


@pytest.fixture(scope="module")
def tuned(operators, compiled):
    """The library with a record of its first gemm."""
    return compiled(record(operators[1], history=HISTORY))


@pytest.fixture(scope="module")
def again(nano_checkpoint, operators, tmp_path_factory):
    """The same, made elsewhere, every kernel by LLVM."""
    place = tmp_path_factory.mktemp("somewhere")
    store = RecordStore(place / "another")
    store.append(partition_of(V4, available_cores()), [record(operators[1], history=HISTORY)])
    compile_model(nano_checkpoint, V4, "q4f16_1", place / "else" / "out", records=store)
    return place / "else" / "out"


def read_report(directory):
    return json.loads((directory / "report.json").read_text())


def from_records(directory):
    return {k["name"] for k in read_report(directory)["kernels"] if k["origin"] == "record"}


def code(directory):
    return (directory / "lib.so").read_bytes()


def test_a_library_from_records_is_the_same_wherever_it_is_made(operators, compiled, tuned, again):
    plain = compiled()
    unmoved = compiled(record(operators[1]), row=find_target("cpu-x86-64-v3"))
    assert [len(from_records(one)) for one in (tuned, plain, unmoved)] == [1, 0, 0]
    assert code(tuned) == code(again) != code(plain)
    assert code(unmoved) == code(plain)


def test_a_record_of_another_default_is_told_of_once_and_not_when_there_is_one_of_this(operators):
    mod, family = operators
    _, (event,) = lowered(mod, record(family, space=1))
    assert event.reason.startswith("tuned beside another default than the rules choose now")
    _, (used,) = lowered(mod, record(family, space=1), record(family))
    assert used.outcome == "done"


def test_a_record_that_no_longer_replays_is_in_the_report_with_its_kernel(operators, compiled):
    report = read_report(compiled(record(operators[1], choice={**CHOICE, "m": 7})))
    (event,) = [e for e in report["events"] if e["source"] == "Records"]
    assert event["outcome"] == "refused"
    assert event["reason"].startswith("no point of its space: ")
    assert "'m': 7" in event["reason"]
    kernel = next(k for k in report["kernels"] if k["name"] == event["subject"])
    assert (kernel["origin"], report["tuning"]) == ("rule", [])


def test_the_report_has_the_curve_of_each_record_that_it_used(tuned):
    """(default 100 us, best 50 us at the second of three trials)"""
    report = read_report(tuned)
    (kernel,) = [k for k in report["kernels"] if k["origin"] == "record"]
    assert kernel["how"].startswith("m 2, blocks 1")
    assert kernel["how"].endswith("2.00 times as fast as the rules' choice when tuned")
    (curve,) = report["tuning"]
    assert curve["kernel"] == kernel["name"]
    assert curve["trials"] == [0, 2, 3]
    assert curve["seconds"] == pytest.approx([1e-4, 5e-5, 5e-5])


def test_equal_records_make_equal_reports_and_history_changes_no_code(
    operators, compiled, tuned, again
):
    for name in ("report.json", "manifest.json", "lib.so"):
        assert (tuned / name).read_bytes() == (again / name).read_bytes()
    assert code(tuned) == code(compiled(record(operators[1])))
