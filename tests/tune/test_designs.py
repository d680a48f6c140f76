"""Kernels that TVM writes: MetaSchedule's designs as points, records that replay, what has none."""

import inspect
import json

import msgspec
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, tirx

from mlc_compile.driver.compile import compile_model
from mlc_compile.driver.job import Options
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.passes import events
from mlc_compile.records import Chosen, Record, RecordStore, partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.leftovers import ScheduleLeftovers, by_rules
from mlc_compile.schedule.traces import TraceSpace, replayed, workload_of
from mlc_compile.schedule.tuned import tuned
from mlc_compile.target import find_target
from mlc_compile.tune.designs import (
    INDICES,
    SYMBOLIC,
    designs_of,
    modules_found_once,
    with_leftovers,
)
from mlc_compile.tune.local import LocalMeasurer
from mlc_compile.tune.measure import BUILDER, Measured
from mlc_compile.tune.tasks import Task, Tasks, tasks_of
from mlc_compile.tune.worker import Worker
from mlc_compile.tune.workshop import Workshop
from tests.schedule.legalizing import legalized, only_kernel
from tests.tune.conftest import Oracle

CPU = find_target("cpu")
UNFUSED = ("FuseRMSNormLinear", "FuseResidual")  # leaves additions that TVM writes


@pytest.fixture(scope="module")
def found(nano_plan):
    """The tasks of the nano model without two fusions."""
    mod, plan = nano_plan("cpu", "q4f16_1", disabled=UNFUSED)
    with tvm_target(CPU):
        return with_leftovers(tasks_of(mod, plan), mod, plan)


@pytest.fixture(scope="module")
def add(found):
    """The addition of one token: two in each of two layers."""
    return next(task for task in found.tasks if task.name == "metaschedule add")


@pytest.fixture(scope="module")
def softmax():
    """A kernel with reductions, as TVM writes it."""
    return only_kernel(legalized(lambda x: relax.op.nn.softmax(x, axis=-1), (16, 32)))


@pytest.fixture(scope="module")
def designs(softmax):
    with tvm_target(CPU):
        return designs_of(softmax, 2)


def record(task, choice, **changed):
    fields = {
        "workload": task.family.workload,
        "space": task.family.version,
        "choice": choice,
        "microseconds": 1.0,
        "default_microseconds": 2.0,
        "noise": 0.01,
        "trials": 3,
        "seed": 0,
    }
    return Record(**{**fields, **changed})


def test_python_is_asked_once_for_the_module_of_a_file_and_answers_the_same(monkeypatch):
    asked, plain = [], inspect.getmodule

    def counted(item, name=None):
        asked.append(getattr(getattr(item, "f_code", item), "co_filename", None))
        return plain(item, name)

    def seen():
        frames = (f for f in inspect.stack() if f.filename != __file__)
        return [(f.filename, f.lineno, f.function, f.code_context) for f in frames]

    monkeypatch.setattr(inspect, "getmodule", counted)
    want = seen()
    often = len(asked)
    asked.clear()
    with modules_found_once():
        assert [seen() for _ in range(3)] == [want] * 3
        assert inspect.getmodule(Oracle) is plain(Oracle)
    files = [name for name in asked if name is not None]
    assert len(files) == len(set(files)) < often
    assert inspect.getmodule is counted


def test_a_kernel_that_tvm_writes_is_a_task_and_its_operator_is_not_untunable(found, add):
    assert add.calls == {"decode": 4}
    assert add.family.space.size > 1
    assert "relax.add" not in {one.name for one in found.untunable}


def test_a_kernel_for_any_number_of_tokens_is_listed_with_its_reason(found):
    reasons = {one.name: one.reason for one in found.untunable}
    assert reasons["last_position"] == reasons["add1"] == SYMBOLIC


def test_every_point_is_built_checked_and_timed_beside_the_rules_schedule(add, tmp_path):
    workshop = Workshop(CPU, tmp_path, builders=(Worker(BUILDER, threads=1),))
    measurer = LocalMeasurer(workshop)
    try:
        points = list(add.family.space.points())[:3]
        outcomes = list(measurer.measure(add, points, thorough=False))
    finally:
        measurer.close()
    assert [type(one) for one in outcomes] == [Measured] * len(points)


def test_designs_are_many_distinct_and_the_same_again(softmax, designs):
    assert len(designs) > 4
    with tvm_target(CPU):
        assert designs_of(softmax, 2) == designs


def test_a_trace_replays_to_the_same_kernel_without_metaschedule(softmax, designs):
    for text in designs[:4]:
        one, again = (replayed(softmax, json.loads(text)) for _ in range(2))
        tvm.ir.assert_structural_equal(one, again)
        assert one.attrs["tirx.is_scheduled"]


def test_what_a_design_computes_is_what_the_kernel_does(softmax, designs):
    """The sum of a row in another order: some float32 roundings of numbers below 1."""
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for text in designs[:3]:
        built = replayed(softmax, json.loads(text)).with_attr("global_symbol", "main")
        run = tvm.compile(IRModule({"main": built}), target=tvm_target(CPU))["main"]
        got = tvm.runtime.tensor(np.full_like(x, np.nan))
        run(tvm.runtime.tensor(x), got)
        np.testing.assert_allclose(got.numpy(), want, atol=1e-6)


@pytest.mark.parametrize("trace", [[], [["no", "trace"]], [[["GetSBlock", [], ["x"], ["b"]]], []]])
def test_what_is_no_trace_of_a_kernel_does_not_replay(softmax, trace):
    assert replayed(softmax, trace) is None


def test_the_search_goes_through_designs_as_through_parameters(session, softmax, designs, tmp_path):
    """The fastest is a record, whose trace replays; what was tried is not tried again."""
    space = TraceSpace(softmax, by_rules(softmax, None), designs[:12])
    task = Task("softmax", Family(workload_of(softmax), space, space.build, ()), (), {"decode": 1})
    fastest = designs[5]

    def cost(_task, point):
        return 0.5 if point == fastest else 0.9

    oracle = Oracle(lambda features: -sum(features.values()))
    result = session(cost, model=oracle).run(Tasks((task,), ()))
    (kept,) = (r for one in RecordStore(tmp_path).all() for r in one.records if r.speedup == 2)
    assert space.point(kept.choice) == fastest
    assert result.tasks[0].choice == kept.choice
    assert msgspec.json.decode(msgspec.json.encode(result))["complete"]
    again = session(cost, model=oracle).run(Tasks((task,), ()))
    assert again.trials <= 3  # the record and the best, beside this run's default


def test_a_design_s_features_are_its_decisions(softmax, designs):
    space = TraceSpace(softmax, softmax, designs)
    seen = [tuple(sorted(space.features(point).items())) for point in designs]
    assert len(set(seen)) > len(designs) / 2
    assert space.features(space.default) == {}


def scheduled(func, *records):
    """The module with `func`, scheduled, and what was told of records."""
    out = ScheduleLeftovers(None, Chosen(records))(IRModule({"kernel": func}))
    return out, [e for e in events.read(out) if e.source == "Records"]


def test_a_record_s_trace_is_the_schedule(add):
    func, trace = add.family.space.func, json.loads(add.family.space.designs[0])
    out, (event,) = scheduled(func, record(add, trace))
    tvm.ir.assert_structural_equal(out["kernel"], replayed(func, trace))
    assert event.reason == (
        "a trace of MetaSchedule's: 2.00 times as fast as the rules' choice when tuned"
    )
    assert tuned(out) == {"kernel": record(add, trace)}


@pytest.mark.parametrize(
    ("choice", "changed", "told"),
    [
        ([["no", "trace"]], {}, "its trace does not replay"),
        ({"m": 2}, {}, "its trace does not replay"),
        ([], {"space": 1}, "tuned beside another default than the rules choose now"),
    ],
)
def test_a_record_that_does_not_replay_leaves_the_rules_schedule(add, choice, changed, told):
    out, (event,) = scheduled(add.family.space.func, record(add, choice, **changed))
    assert event.outcome == "refused"
    assert event.reason.startswith(told)
    tvm.ir.assert_structural_equal(out["kernel"], add.family.space.by_rules)


def test_a_kernel_is_known_by_its_structure_and_not_by_its_name(add, softmax):
    func = add.family.space.func
    assert workload_of(func) == workload_of(tvm.ir.load_json(tvm.ir.save_json(func)))
    assert workload_of(func) != workload_of(softmax)


def test_a_library_from_a_trace_is_the_same_wherever_it_is_made(nano_checkpoint, add, tmp_path):
    store = RecordStore(tmp_path / "cache")
    trace = json.loads(add.family.space.designs[0])
    store.append(partition_of(CPU, available_cores()), [record(add, trace)])
    made = []
    for name in ("one", "other"):
        out = tmp_path / name
        options = Options(disabled=UNFUSED)
        compile_model(nano_checkpoint, CPU, "q4f16_1", out, options, records=store)
        report = json.loads((out / "report.json").read_text())
        kernels = {k["name"] for k in report["kernels"] if k["origin"] == "record"}
        made.append(((out / "lib.so").read_bytes(), (out / "report.json").read_bytes(), kernels))
    assert made[0] == made[1]
    assert made[0][2] == {"add"}


def test_a_kernel_that_reads_integers_is_not_called_with_random_ones():
    from mlc_compile.tune.designs import _why_not

    kernel = only_kernel(legalized(lambda x: relax.op.astype(x, "int32"), (4, 4)))
    assert isinstance(kernel, tirx.PrimFunc)
    assert _why_not(kernel) == INDICES
