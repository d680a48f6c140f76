"""The cost model: what it learns, that it is deterministic, and how it fails."""

import math

import pytest

from mlc_compile.tune.cost_model import LEAST_SAMPLES, Boosted, Sample, rank_correlation


def sample(a, b, cost):
    features = {"knob a": float(a), "knob b": float(b)}
    return Sample("test", "digest", 1, {"a": a, "b": b}, features, cost)


SAMPLES = [sample(a, b, 0.5 + abs(a - 5) / 4 + b / 100) for a in range(10) for b in range(4)]


@pytest.fixture(scope="module")
def model():
    made = Boosted(seed=0)
    yield made
    made.close()


def test_it_orders_points_as_they_were_measured(model):
    asked = [{"knob a": float(a), "knob b": 0.0} for a in range(10)]
    predicted = model.predict(SAMPLES, asked)
    assert rank_correlation(predicted, [abs(a - 5) for a in range(10)]) > 0.9
    assert model.predict(SAMPLES, asked) == predicted  # of the same question


def test_few_samples_say_nothing(model):
    assert model.predict(SAMPLES[: LEAST_SAMPLES - 1], [{}]) is None


def test_a_model_that_dies_leaves_chance_and_a_note(model):
    broken = Boosted(seed=0)
    broken.worker.module = "mlc_compile.no_such_module"
    assert broken.predict(SAMPLES, [{"knob a": 1.0}]) is None
    assert "at random" in broken.notes[0]


@pytest.mark.parametrize(
    ("other", "correlation"),
    [
        pytest.param([1, 2, 3, 40], 1.0, id="the same order"),
        pytest.param([4, 3, 2, 1], -1.0, id="the reverse"),
        pytest.param([2, 1, 4, 3], 0.6, id="1 - 6 * 4 / (4 * 15)"),
        pytest.param([1, 1, 2, 2], 2 / math.sqrt(5), id="ties share their rank"),
        pytest.param([7, 7, 7, 7], None, id="nothing to order"),
    ],
)
def test_rank_correlation(other, correlation):
    found = rank_correlation([10, 20, 30, 40], other)
    assert found == (None if correlation is None else pytest.approx(correlation))
