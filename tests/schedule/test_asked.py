"""What is asked of the tuning records: about every kernel that one may decide, and the same
whatever is answered. The build cache keeps libraries by the answers to these questions.
"""

import dataclasses
import json

import pytest
from tvm import IRModule, s_tir, tirx

from mlc_compile.emit.cpu import tvm_target
from mlc_compile.pipeline import Plan, phases
from mlc_compile.records import NOTHING, Chosen, Record
from mlc_compile.schedule import tuned
from mlc_compile.schedule.leftovers import ScheduleLeftovers, by_rules
from mlc_compile.schedule.traces import space_version, workload_of
from mlc_compile.target import find_target
from mlc_compile.tune.designs import before_schedules
from mlc_compile.tune.tasks import before_kernels, tasks_of

MODELS = [
    ("cpu-x86-64-v4", "q4f16_1"),
    ("cpu-x86-64-v3", "q4f32_1"),
    ("cpu-x86-64-v2", "q4f16_1"),
    ("cpu-aarch64", "q0f32"),
]


def record(workload, space, choice):
    return Record(
        workload=workload,
        space=space,
        choice=choice,
        microseconds=1.0,
        default_microseconds=2.0,
        noise=0.01,
        trials=1,
        seed=0,
    )


def far_points(mod, plan):
    """A record of each family: the last point of its space, far from the default."""
    for task in tasks_of(mod, plan).tasks:
        family = task.family
        *_, last = family.space.points()
        yield record(family.workload, family.version, family.space.choice(last))


def traced(mod, plan):
    """A record of each kernel that TVM writes: a trace that splits its first loop."""
    for func in before_schedules(before_kernels(mod, plan), plan).functions.values():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in func.attrs:
            yield record(workload_of(func), space_version(by_rules(func, None)), split(func))


def split(func):
    """A trace as a record holds it."""
    sch = s_tir.Schedule(func)
    block = sch.get_child_blocks(sch.get_sblock("root"))[0]
    sch.split(sch.get_loops(block)[0], [None, 2])
    return json.loads(json.dumps(sch.trace.as_json(), default=lambda number: number.value))


def scheduled(mod, plan, records=NOTHING):
    """The module when its kernels are scheduled."""
    for phase in phases(dataclasses.replace(plan, records=records)):
        for step in phase.passes:
            mod = step(mod)
        if phase.name == "kernels":
            return mod
    raise AssertionError("every plan has the phase")


@dataclasses.dataclass(frozen=True)
class Model:
    """The nano model, its plan, its kernels scheduled by the rules, and records of others."""

    mod: IRModule
    plan: Plan
    plain: IRModule
    records: Chosen  # leave no kernel as the rules have it


@pytest.fixture(scope="module", params=MODELS, ids=" ".join)
def model(request, nano_plan):
    target, scheme = request.param
    mod, plan = nano_plan(target, scheme)
    with tvm_target(find_target(target)):
        records = Chosen((*far_points(mod, plan), *traced(mod, plan)))
        yield Model(mod, plan, scheduled(mod, plan), records)


def test_an_answer_changes_no_question(model):
    other = scheduled(model.mod, model.plan, model.records)
    used = {record.workload for record in tuned.tuned(other).values()}
    assert used == {record.workload for record in model.records.records}  # each had its effect
    assert tuned.asked(model.plain) == tuned.asked(other)


def test_whatever_is_tuned_is_asked_for(model):
    asked = tuned.asked(model.plain)
    assert {record.workload for record in model.records.records} <= set(asked)


def test_questions_have_an_order_of_their_own(model):
    asked = tuned.asked(model.plain)
    assert asked == tuned.asked(tuned.with_asked(IRModule(), reversed([*asked, *asked])))


def test_a_module_without_such_kernels_asks_nothing(model):
    assert tuned.asked(model.mod) == ()
    assert tuned.asked(ScheduleLeftovers()(IRModule())) == ()
