"""Ratios of rounds: the median, and an interval that covers what it claims to."""

import random
from math import comb

import pytest

from mlc_compile.bench.paired import CONFIDENCE, ROUNDS, median_interval, ratio


def test_the_ratio_is_taken_within_rounds() -> None:
    first = [100.0, 50.0, 200.0]  # the machine drifts by more than what is to be told apart
    got = ratio([110.0, 55.0, 220.0], first)
    assert got.median == pytest.approx(1.1)
    assert got.interval is None


def test_rounds_must_pair_up() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratio([1.0], [1.0, 2.0])


def test_six_rounds_are_the_fewest_with_an_interval() -> None:
    assert median_interval(range(ROUNDS - 1)) is None
    assert median_interval(range(ROUNDS)) == (0, ROUNDS - 1)


@pytest.mark.parametrize("n", range(ROUNDS, 30))
def test_the_interval_is_the_narrowest_with_its_confidence(n: int) -> None:
    low, high = median_interval(range(n)) or (0, 0)
    assert low + high == n - 1, "as far from either end"

    def coverage(outside: int) -> float:
        return 1 - 2 * sum(comb(n, i) for i in range(outside + 1)) / 2**n

    assert coverage(low) >= CONFIDENCE > coverage(low + 1)


def test_it_covers_the_median_of_a_skewed_distribution() -> None:
    """2000 samples of 9: coverage is binomial with p = 0.961, so below 0.945 once in 5000."""
    draw = random.Random(0)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.lognormvariate(0, 0.5) for _ in range(9)]) or (0, 0)
        hits += low <= 1 <= high  # the median of a lognormal with mu 0
    assert hits / 2000 >= 0.945
