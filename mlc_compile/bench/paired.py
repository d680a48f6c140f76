"""How much faster one artifact is than another, from rounds that measured both: a median ratio.

A shared machine drifts by more than what is to be told apart, but both speeds of a round drift
together, so ratios are taken within a round and never across rounds.
"""

import statistics
from collections.abc import Sequence
from itertools import accumulate
from math import comb
from typing import Final

import msgspec

CONFIDENCE: Final = 0.95
ROUNDS: Final = 6  # the fewest whose least and largest ratio enclose the median with CONFIDENCE


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The median of the rounds' ratios, and an interval for the median of all such ratios.

    `interval` is None where there are too few rounds for one.
    """

    median: float
    interval: tuple[float, float] | None


def ratio(speeds: Sequence[float], first: Sequence[float]) -> Ratio:
    """Speeds of two artifacts, round by round, to how many times as fast the one is."""
    ratios = [mine / other for mine, other in zip(speeds, first, strict=True)]
    return Ratio(median=statistics.median(ratios), interval=median_interval(ratios))


def median_interval(
    sample: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The narrowest pair of order statistics that encloses the median with `confidence`, if any.

    The r-th of n from either end misses it with probability 2 P(Binomial(n, 1/2) < r), whatever
    the distribution (David and Nagaraja, Order Statistics, 2003, section 7.1).
    """
    ordered, n = sorted(sample), len(sample)
    missed = accumulate(2 * comb(n, r) / 2**n for r in range(n // 2))
    r = sum(share <= 1 - confidence for share in missed)
    return (ordered[r - 1], ordered[-r]) if r else None
