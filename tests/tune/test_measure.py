"""Real kernels in real processes: right, wrong, hanging, crashing; and how times are joined."""

from dataclasses import dataclass

import pytest
from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.records import Workload
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.operand import DENSE, RESULT
from mlc_compile.schedule.space import Space
from mlc_compile.target import find_target
from mlc_compile.tune.inputs import situation
from mlc_compile.tune.local import LocalMeasurer
from mlc_compile.tune.measure import BUILDER, Failed, Measured, joined
from mlc_compile.tune.runner import Timing
from mlc_compile.tune.tasks import Task
from mlc_compile.tune.worker import Worker
from mlc_compile.tune.workshop import Workshop

RIGHT, SLOW, WRONG, UNWRITTEN, HANG, CRASH, UNBUILT, UNLINKED = range(8)
CALLS = {HANG: "pause", CRASH: "abort", UNLINKED: "there_is_no_such_function"}


@dataclass(frozen=True)
class Way:
    """How a kernel behaves."""

    way: int = RIGHT


def double(point):
    """x f32[m, 64] -> 2 x, or something else."""
    if point.way == UNBUILT:
        raise ValueError("nobody can build this")
    with v.kernel() as builder:
        x = v.argument("x", (v.size("m"), 64))
        y = v.argument("y", x.shape)
        if point.way in CALLS:
            T.evaluate(tirx.call_extern("int32", CALLS[point.way]))
        with T.serial(0, 200 if point.way == SLOW else 1), T.serial(0, x.shape[0]) as i:
            factor = v.splat(3.0 if point.way == WRONG else 2.0)
            if point.way != UNWRITTEN:
                v.store(v.load(x, i, 0) * factor, y, i, 0)
            for part in range(1, 4):
                v.store(v.load(x, i, part * 16) * v.splat(2.0), y, i, part * 16)
    return builder.get()


def toy():
    family = Family(
        Workload.of("test.double", n=64),
        Space(Way(), {"way": tuple(range(8))}),
        double,
        (DENSE, RESULT),
    )
    func = double(Way())
    sizes = [{"m": 4}, {"m": 4096}]
    return Task("double", family, tuple(situation(func, family.operands, s) for s in sizes))


@pytest.fixture(scope="module")
def measurer(tmp_path_factory):
    place = tmp_path_factory.mktemp("built")
    workshop = Workshop(find_target("cpu"), place, builders=(Worker(BUILDER, 1),))
    made = LocalMeasurer(workshop, run_seconds=5)
    yield made
    made.close()


def measure(measurer, *ways):
    outcomes = measurer.measure(toy(), [Way(way) for way in ways], thorough=False)
    return {outcome.point.way: outcome for outcome in outcomes}


def test_a_kernel_is_timed_beside_the_default(measurer):
    found = measure(measurer, RIGHT, SLOW)
    assert all(isinstance(outcome, Measured) for outcome in found.values())
    assert found[SLOW].cost > 2  # 200 times the work
    assert found[SLOW].cost > found[RIGHT].cost
    assert found[SLOW].default_microseconds > 0


def test_what_fails_is_told_by_kind_and_the_next_one_is_measured(measurer):
    found = measure(measurer, WRONG, UNWRITTEN, UNBUILT, UNLINKED, CRASH, HANG, RIGHT)
    kinds = {way: o.kind for way, o in found.items() if isinstance(o, Failed)}
    assert kinds == {
        WRONG: "wrong result",
        UNWRITTEN: "wrong result",
        UNBUILT: "schedule",
        UNLINKED: "run crash",
        CRASH: "run crash",
        HANG: "run hang",
    }
    assert "nobody can build this" in found[UNBUILT].reason
    assert isinstance(found[RIGHT], Measured)


def timing(ratio, base=10.0, noise=0.01):
    return Timing(ratio * base, base, ratio, noise)


def test_a_cost_is_the_weighted_mean_of_ratios():
    found = joined(Way(), [timing(0.5, 100), timing(1.0, 1000)], [1, 3])
    assert found.cost == pytest.approx(0.875)
    assert found.default_microseconds == pytest.approx(775)
    assert found.microseconds == pytest.approx(0.875 * 775)
    assert found.noise == pytest.approx((0.0025**2 + 0.0075**2) ** 0.5)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_an_error(ratio):
    assert joined(Way(), [timing(1.0), timing(ratio)], [1, 1]).kind == "no time"


def test_no_timing_is_an_error():
    assert joined(Way(), [], []).kind == "no time"
