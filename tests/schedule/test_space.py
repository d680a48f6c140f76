"""Spaces: the default first, literal choices, only valid points."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from mlc_compile.schedule.space import Space


@dataclass(frozen=True)
class Point:
    m: int = 5
    blocks: int = 1
    fixed: int = 9


SPACE = Space(Point(), {"m": (1, 2, 4), "blocks": (1, 2)}, lambda p: p.m * p.blocks < 8)


def test_the_default_comes_first_and_each_valid_point_once():
    points = list(SPACE.points())
    assert points[0] == Point()
    assert len(points) == len(set(points)) == SPACE.size == 6
    assert all(p.m * p.blocks < 8 for p in points)


def test_the_default_is_a_choice_though_no_table_has_it():
    assert SPACE.choices == {"m": (1, 2, 4, 5), "blocks": (1, 2)}


def test_a_choice_names_the_knobs_and_gives_the_point_again():
    point = Point(m=2, blocks=2)
    assert SPACE.choice(point) == {"m": 2, "blocks": 2}
    assert all(SPACE.point(SPACE.choice(p)) == p for p in SPACE.points())


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"m": 2}, id="a knob is missing"),
        pytest.param({"m": 2, "blocks": 1, "k": 1}, id="a knob too many"),
        pytest.param({"m": 3, "blocks": 1}, id="no such choice"),
        pytest.param({"m": True, "blocks": 1}, id="no number"),
        pytest.param({"m": "2", "blocks": 1}, id="a text"),
        pytest.param({"m": 4, "blocks": 2}, id="not valid"),
    ],
)
def test_what_names_no_point_is_none(choice):
    assert SPACE.point(choice) is None


def test_another_default_is_another_version():
    assert replace(SPACE, default=Point(m=4)).version != SPACE.version
    assert replace(SPACE, knobs={"m": (1,), "blocks": (1,)}).version == SPACE.version


def test_mutations_change_at_most_one_knob_and_stay_valid():
    random, point = Random(0), Point(m=2)
    drawn = {SPACE.mutated(point, random) for _ in range(200)}
    assert drawn == {Point(m=1), Point(m=2, blocks=2), Point(m=4), Point(m=5)}


def test_crossings_take_each_knob_from_a_parent():
    random, one, other = Random(0), Point(m=1, blocks=2), Point(m=5, blocks=1)
    drawn = {SPACE.crossed(one, other, random) for _ in range(200)}
    assert drawn == {one, other, Point(m=1, blocks=1)}  # m 5 of 2 blocks is not valid
