"""Times come in pairs; each side is the median of its faster half."""

import pytest

from mlc_compile.tune.runner import timing_of


def test_a_slow_minute_slows_both_and_the_ratio_stays():
    found = timing_of([(1.0, 0.8), (5.0, 4.0), (1.0, 0.8), (1.0, 0.8), (9.0, 7.2)])
    assert found.ratio == pytest.approx(0.8)
    assert found.noise == pytest.approx(0, abs=1e-12)
    assert found.baseline_microseconds == 1e6


def test_what_disturbs_one_side_alone_is_left_out():
    calm = [(1.0, 1.0)] * 4
    disturbed = [(1.0, 50.0), (50.0, 1.0), (1.0, 3.0), (2.0, 1.0)]
    assert timing_of(calm + disturbed).ratio == 1.0


def test_noise_is_what_the_medians_may_be_off_by():
    sides = [0.9, 1.0, 1.1, 2.0, 2.0, 2.0]
    few = timing_of([(1.0, c) for c in sides])
    many = timing_of([(1.0, c) for c in sides * 4])
    assert few.ratio == many.ratio == 1.0
    assert few.noise == pytest.approx(2 * many.noise)
    assert few.noise == pytest.approx(2 * 1.2533 * 1.4826 * 0.1 / 3**0.5)


def test_both_sides_add_to_the_noise():
    sides = [0.9, 1.0, 1.1, 2.0, 2.0, 2.0]
    one, both = timing_of([(1.0, c) for c in sides]), timing_of([(c, c) for c in sides])
    assert both.noise == pytest.approx(2**0.5 * one.noise)


def test_a_ratio_that_changed_meanwhile_is_noise():
    found = timing_of([(1.0, 1.0)] * 6 + [(1.0, 0.5)] * 6)
    assert found.noise >= 0.25
    assert timing_of([(1.0, 0.5)] * 12).noise == 0
