"""Rounds, records, resuming: the run of tuning over a measurer that is told every cost."""

import dataclasses

import msgspec
import pytest

from mlc_compile.errors import TuningError
from mlc_compile.records import RecordStore
from mlc_compile.tune import events
from mlc_compile.tune.inputs import Argument, Situation
from mlc_compile.tune.measure import Failed
from mlc_compile.tune.memory import Memory
from mlc_compile.tune.roof import Roof
from mlc_compile.tune.session import BATCH, LEAST_BATCH, Budget
from tests.tune.conftest import PARTITION, FakeMeasurer, Oracle, Point, tasks, toy_task


def by_a(_task, point):
    """Faster with larger a."""
    return 1.1 - 0.05 * point.a


def found(tmp_path, task, partition=PARTITION):
    return RecordStore(tmp_path).best(partition, task.family.workload, task.family.version)


def test_the_best_point_becomes_a_record_and_says_what_it_beat(session, tmp_path):
    task = toy_task()
    result = session(by_a).run(tasks(task))
    record = found(tmp_path, task)
    assert record.choice["a"] == 8
    assert (record.microseconds, record.default_microseconds) == (pytest.approx(70), 100)
    assert (result.records, result.tasks[0].choice) == (1, record.choice)
    assert result.gains == {"decode": pytest.approx(1 / 0.7)}


def test_the_default_is_measured_first_and_is_never_a_candidate(session):
    measurer = FakeMeasurer(by_a)
    session(measurer).run(tasks(toy_task()))
    assert measurer.asked[0] == ("toy", Point(), False)
    assert Point() not in [point for _, point, _ in measurer.asked[1:]]


def test_all_of_a_small_space_is_tried_once_and_the_run_ends(session):
    measurer = FakeMeasurer(by_a)
    result = session(measurer).run(tasks(toy_task()))
    assert len(measurer.candidates) == len(set(measurer.candidates)) == 15
    assert result.complete


def test_what_does_not_beat_the_noise_is_no_record(session, tmp_path):
    task = toy_task()
    result = session(FakeMeasurer(lambda _t, _p: 0.96, noise=0.05)).run(tasks(task))
    assert result.records == 0
    assert result.tasks[0].choice is None
    assert found(tmp_path, task) is None


def test_a_lucky_measurement_that_a_thorough_one_does_not_confirm_is_no_record(session):
    class Lucky(FakeMeasurer):
        def measure(self, task, points, *, thorough):
            for outcome in super().measure(task, points, thorough=thorough):
                yield dataclasses.replace(outcome, cost=1.0 if thorough else outcome.cost)

    assert session(Lucky(by_a)).run(tasks(toy_task())).records == 0


def test_without_one_valid_measurement_it_fails_with_a_histogram_and_the_store_stays(
    session, tmp_path
):
    kinds = {0: "build refused", 1: "run crash", 2: "run hang", 3: "wrong result"}
    with pytest.raises(TuningError, match="15 trials failed") as raised:
        session(lambda _t, point: kinds[point.b]).run(tasks(toy_task()))
    assert all(kind in str(raised.value) for kind in kinds.values())
    assert raised.value.exit_code == 5
    assert not (tmp_path / "records").exists()


def test_where_no_default_runs_it_fails_too(session):
    class Broken(FakeMeasurer):
        def measure(self, task, points, *, thorough):
            return (Failed(point, "run crash", "the test says so") for point in points)

    with pytest.raises(TuningError, match="run crash: 1"):
        session(Broken(by_a)).run(tasks(toy_task()))


def test_failed_points_cost_an_error_and_the_others_count(session, tmp_path):
    def cost(_task, point):
        return "run crash" if point.a == 8 else by_a("", point)

    result = session(cost).run(tasks(toy_task()))
    assert result.errors == {"run crash": 4}
    assert found(tmp_path, toy_task()).choice["a"] == 4


def test_one_task_that_fails_leaves_the_others(session):
    def cost(name, point):
        return "build refused" if name == "bad" else by_a(name, point)

    result = session(cost).run(tasks(toy_task("bad"), toy_task("good")))
    assert {one.name: one.choice is not None for one in result.tasks} == {
        "bad": False,
        "good": True,
    }


def sequence(make, seed, model=None):
    measurer = FakeMeasurer(by_a)
    make(measurer, seed=seed, model=model).run(tasks(toy_task("x"), toy_task("y")))
    return measurer.candidates


def test_a_seed_decides_the_candidates(tmp_path_factory, session):
    def fresh(*args, **kwargs):
        made = session(*args, **kwargs)
        made.memory = Memory(None)
        made.store = RecordStore(tmp_path_factory.mktemp("store"))
        return made

    model = Oracle(lambda features: -features["knob a"])
    assert sequence(fresh, 1, model) == sequence(fresh, 1, model)
    assert sequence(fresh, 1) != sequence(fresh, 2)


def test_the_next_run_goes_on_where_the_last_one_stopped(session):
    first, second = FakeMeasurer(by_a), FakeMeasurer(by_a)
    session(first, budget=Budget(trials=8)).run(tasks(toy_task()))
    session(second, budget=Budget()).run(tasks(toy_task()))
    again = set(first.candidates) & set(second.candidates)
    assert len(first.candidates) == 8
    assert len(set(first.candidates) | set(second.candidates)) == 15
    assert 0 < len(again) <= 3  # the record and the best, beside this run's default


def test_a_choice_that_the_store_has_is_not_appended_again(session):
    session(by_a).run(tasks(toy_task()))
    assert session(by_a).run(tasks(toy_task())).records == 0


def test_an_interrupt_keeps_what_was_found(session, tmp_path):
    class Interrupted(FakeMeasurer):
        def measure(self, task, points, *, thorough):
            for outcome in super().measure(task, points, thorough=thorough):
                if task.name == "late" and outcome.point != Point():
                    raise KeyboardInterrupt
                yield outcome

    early = toy_task("early", {"decode": 9})
    with pytest.raises(KeyboardInterrupt):
        session(Interrupted(by_a)).run(tasks(early, toy_task("late")))
    assert found(tmp_path, early).choice["a"] == 8


def test_records_of_another_target_are_not_seen(session, tmp_path):
    other = msgspec.structs.replace(PARTITION, features=("avx2", "avx512f"))
    session(by_a, partition=other).run(tasks(toy_task()))
    assert found(tmp_path, toy_task()) is None
    assert found(tmp_path, toy_task(), other) is not None


def test_trials_are_a_limit(session):
    measurer = FakeMeasurer(by_a)
    assert session(measurer, budget=Budget(trials=3)).run(tasks(toy_task())).trials == 3
    assert len(measurer.candidates) == 3


def test_time_is_a_limit(session):
    made = session(by_a, budget=Budget(seconds=4.5))
    ticks = iter(range(10_000))
    made.clock = lambda: float(next(ticks))
    result = made.run(tasks(toy_task()))
    assert 0 < result.trials < 8
    assert not result.complete


@pytest.mark.parametrize(
    ("budget", "count", "batch"),
    [
        pytest.param(Budget(), 5, BATCH, id="no limit"),
        pytest.param(Budget(seconds=2400), 5, BATCH, id="time for three rounds of each"),
        pytest.param(Budget(seconds=300), 5, 20, id="rounds are cut to fit"),
        pytest.param(Budget(trials=2), 5, LEAST_BATCH, id="not below the least"),
    ],
)
def test_a_round_is_as_large_as_the_budget_lasts_for(budget, count, batch):
    assert budget.batch(count) == batch


def test_everything_is_told(session):
    heard = []
    session(by_a, heard=heard).run(tasks(toy_task()))
    kinds = [type(event) for event in heard]
    assert kinds[0] is events.Planned
    assert kinds.count(events.Progressed) == 15
    assert {events.Rounded, events.Recorded} <= set(kinds)
    texts = [msgspec.json.decode(msgspec.json.encode(event)) for event in heard]
    assert {text["event"] for text in texts} == {"tasks", "trial", "round", "record"}


def test_predictions_are_held_against_what_was_measured(session):
    right = Oracle(lambda features: -features["knob a"])
    wrong = Oracle(lambda features: features["knob a"])
    assert session(by_a, model=right).run(tasks(toy_task("r"))).correlation > 0.9
    assert session(by_a, model=wrong).run(tasks(toy_task("w"))).correlation < -0.9


def test_a_record_tells_how_the_run_came_to_it(session, tmp_path):
    """From the default at trial 0, each time that something was faster; no more than that."""
    result = session(by_a).run(tasks(toy_task()))
    history = found(tmp_path, toy_task()).history
    assert history[0] == (0, 1.0)
    trials, ratios = zip(*history, strict=True)
    assert list(trials) == sorted(set(trials))
    assert list(ratios) == sorted(set(ratios), reverse=True)
    assert ratios[-1] == pytest.approx(0.7)
    assert set(history[1:]) <= set(result.tasks[0].history)


def test_each_task_is_held_against_the_bandwidth_of_what_measures(session):
    measurer = FakeMeasurer(lambda _t, _p: 1.2, microseconds=100.0, bytes_s=1e10)
    weights = Argument((900_000,), "int8", "normal", "weights")
    task = dataclasses.replace(toy_task(), situations=(Situation((weights,), 0),))
    result = session(measurer).run(tasks(task))
    (one,) = result.tasks
    assert result.roof == Roof(1e10)
    assert (one.bytes_s, one.roof_share) == (pytest.approx(9e9), pytest.approx(0.9))
    assert one.bound == "memory"
    assert one.finding == "the default reads at 90 % of the bandwidth: nothing to gain"


def test_where_the_bandwidth_is_not_known_no_share_is_told(session):
    result = session(lambda _t, _p: 1.2).run(tasks(toy_task()))
    assert (result.roof, result.tasks[0].roof_share) == (Roof(), None)
    assert result.tasks[0].finding == "no choice beats the default"
