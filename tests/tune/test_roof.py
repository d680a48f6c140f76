"""What a call moves and computes, beside memory's bandwidth, and what is said of it."""

import dataclasses

import pytest

from mlc_compile.emit.cpu import tvm_target
from mlc_compile.target import find_target
from mlc_compile.tune.inputs import Argument, Situation
from mlc_compile.tune.measure import Failed
from mlc_compile.tune.roof import Pace, Roof, Work, finding, measure_roof, moved, pace_of, work_of
from mlc_compile.tune.tasks import name_of, peaks_of, tasks_of
from tests.tune.conftest import FakeMeasurer, toy_task

V4 = find_target("cpu-x86-64-v4")
X = Argument((1, 8), "float32", "normal", "input")
W = Argument((100,), "int32", "packed", "weights")
PAGES = Argument((2, 3, 4), "float32", "normal", "state")  # two layers
Y = Argument((1, 4), "float32", "normal", "result")


def test_everything_is_moved_once_and_of_a_state_what_one_layer_holds():
    assert moved(Situation((X, W, Y), 0)) == 32 + 400 + 16
    assert moved(Situation((X, PAGES, Y), 0, filled=0.25)) == 32 + 16 + 0.25 * 48


def test_each_situation_has_its_share():
    family = dataclasses.replace(toy_task().family, operations=lambda tokens, before: tokens)
    calls = Situation((X,), 0, 1.0, rows=1), Situation((W,), 0, 3.0, rows=9)
    task = dataclasses.replace(toy_task(), family=family, situations=calls)
    assert work_of(task) == (Work(0.25, 32, 1), Work(0.75, 400, 9))


MACHINE = Roof(4e10, {"int8": 1e12})


def test_rates_are_over_the_time():
    pace = pace_of([Work(0.5, 1e6, 0.0), Work(0.5, 3e6, 8e6)], "int8", 100.0, Roof())
    assert (pace.bytes_s, pace.ops_s) == (pytest.approx(2e10), pytest.approx(4e10))
    assert (pace.share, pace.bound) == (None, None)
    assert pace_of([], "int8", 100.0, MACHINE) == Pace(None, None)


@pytest.mark.parametrize(
    ("work", "arithmetic", "share", "bound"),
    [
        pytest.param([Work(1.0, 2e6, 4e6)], "int8", 0.5, "memory", id="2 MB in 50 of 100 us"),
        pytest.param([Work(1.0, 1e6, 9e7)], "int8", 0.9, "arithmetic", id="90 of 100 us to add"),
        pytest.param([Work(1.0, 1e6, 9e7)], "float32", 0.25, "memory", id="no peak is known"),
        pytest.param(
            [Work(0.5, 2e6, 0.0), Work(0.5, 1e6, 8e7)], "int8", 0.65, "arithmetic", id="of both"
        ),
    ],
)
def test_the_share_is_the_least_time_of_the_slower_roof(work, arithmetic, share, bound):
    pace = pace_of(work, arithmetic, 100.0, MACHINE)
    assert (pace.share, pace.bound) == (pytest.approx(share), bound)


def pace(share, bytes_s=2e10, bound="memory"):
    return Pace(bytes_s, None, share, bound)


@pytest.mark.parametrize(
    ("reached", "speedup", "unseen", "told"),
    [
        (pace(0.87), None, 5, "the default reads at 87 % of the bandwidth: nothing to gain"),
        (
            pace(0.9, bound="arithmetic"),
            None,
            5,
            "the default computes at 90 % of the peak: nothing to gain",
        ),
        (
            pace(0.3),
            None,
            5,
            "none of 8 trials beat the default, which reads at 30 % of the bandwidth",
        ),
        (pace(None), None, 0, "no choice beats the default, which reads 20.0 GB/s"),
        (pace(None, None), None, 0, "no choice beats the default"),
        (
            pace(1.5),
            None,
            0,
            "no choice beats the default, which reads at 150 % of the bandwidth, "
            "from caches or in more places at once",
        ),
        (
            pace(0.9),
            1.25,
            0,
            "1.250 times as fast as the default, and reads at 90 % of the bandwidth",
        ),
        (pace(None, None), 1.25, 0, "1.250 times as fast as the default"),
    ],
)
def test_the_finding_is_one_sentence(reached, speedup, unseen, told):
    assert finding(reached, speedup=speedup, trials=8, unseen=unseen) == told


@pytest.fixture(scope="module")
def nano(nano_plan):
    """Work of each task of the nano model (hidden 64, h_q 4, h_kv 2, d 32, q4f16_1)."""
    mod, plan = nano_plan(V4.name, "q4f16_1")
    with tvm_target(V4):
        return {
            (t.family.workload.family, fact(t, "k"), fact(t, "n")): work_of(t)
            for t in tasks_of(mod, plan).tasks
        }


def fact(task, name):
    return dict(task.family.workload.facts).get(name)


def test_a_product_computes_two_operations_a_weight_and_reads_each_once(nano):
    (work,) = nano["cpu.int8_gemv", 64, 256]  # qkv, with its norm
    assert work.operations == 2 * 64 * 256
    weights = 64 * 256 // 2 + 64 // 32 * 256 * 2  # nibbles, and a float16 scale a group
    assert weights < work.nbytes <= weights + 4 * (64 + 64 + 256)


def test_attention_reads_the_positions_that_there_are(nano):
    """At the end of the context: 255 tokens before, one more; two heads of keys and values."""
    (work,) = nano["cpu.flat_step", None, None]
    assert work.operations == 4 * 4 * 32 * 256
    cache = 2 * 2 * 32 * 256 * 2
    assert cache < work.nbytes < 1.1 * cache


def test_what_was_not_tried_is_said_to_be_so():
    told = finding(pace(0.3), speedup=None, trials=0, unseen=5)
    assert told == "not tried: the default reads at 30 % of the bandwidth"
    assert finding(pace(None, None), speedup=None, trials=0, unseen=5) == "not tried"


def test_the_peak_is_that_of_the_fastest_tile_in_each_arithmetic_that_is_asked_for():
    peaks = peaks_of(V4)
    operations = {t.name: t.family.operations(1, 0) for t in peaks}
    measurer = FakeMeasurer(lambda _t, _p: 1.0, microseconds=1e6, bytes_s=5.0)
    roof = measure_roof(measurer, peaks, {"int8"})
    assert roof == Roof(5.0, {"int8": max(c for n, c in operations.items() if "int8" in n)})
    both = measure_roof(measurer, peaks, {"int8", "float32"})
    assert both.ops_s["int8"] == 4 * both.ops_s["float32"]


def test_a_peak_that_fails_is_not_known():
    class Broken(FakeMeasurer):
        def measure(self, task, points, *, thorough):
            return (Failed(point, "run crash", "the test says so") for point in points)

    assert measure_roof(Broken(None), peaks_of(V4), {"int8"}) == Roof()


def test_a_target_without_an_int8_dot_product_has_a_float32_peak_alone():
    assert {t.family.arithmetic for t in peaks_of(find_target("cpu-x86-64-v2"))} == {"float32"}
    assert len({name_of(t.family) for t in peaks_of(V4)}) == 8


def test_a_target_with_tiles_has_their_peak_too():
    """16 x 16 sums of 32 products in an instruction, where a vector of float32 has 16."""
    peaks = peaks_of(find_target("cpu-sapphirerapids"))
    assert {t.family.arithmetic for t in peaks} == {"float32", "int8", "bfloat16"}
    assert len({name_of(t.family) for t in peaks}) == 9
    (tiles,) = (t.family for t in peaks if t.family.arithmetic == "bfloat16")
    floats = next(t.family for t in peaks if t.family.arithmetic == "float32")
    assert floats.space.default == tiles.space.default
    assert tiles.operations(1, 0) == 16 * 32 * floats.operations(1, 0)
