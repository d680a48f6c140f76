"""Proposals: what looks fast first, some at random, nothing twice."""

from mlc_compile.tune.measure import Failed, Measured
from mlc_compile.tune.search import RANDOM_SHARE, Search
from tests.tune.conftest import Point, toy_task

WIDE = {"a": tuple(range(1, 33)), "b": tuple(range(32))}


def nothing(_points):
    return None


def by_sum(points):
    return [float(p.a + p.b) for p in points]


def test_proposals_are_distinct_and_leave_the_default_out():
    search = Search(toy_task(knobs=WIDE), seed=0)
    for predict in (nothing, by_sum):
        points = [p.point for p in search.propose(64, predict)]
        assert len(set(points)) == 64
        assert Point() not in points


def test_what_was_tried_is_not_proposed_again():
    search = Search(toy_task(), seed=0)
    for proposal in search.propose(10, nothing):
        search.learn(Measured(proposal.point, 1.0, 0.0, 1.0))
    assert len(search.propose(64, nothing)) == 5
    assert search.propose(64, nothing)[0].point not in search.tried


def test_a_model_ranks_most_of_them_and_chance_draws_the_rest():
    proposals = Search(toy_task(knobs=WIDE), seed=0).propose(50, by_sum)
    predicted = [p.predicted for p in proposals if p.greedy]
    assert predicted == sorted(predicted)
    assert len(proposals) - len(predicted) == round(50 * RANDOM_SHARE)
    assert [p.predicted for p in proposals] == by_sum([p.point for p in proposals])


def test_evolution_finds_better_points_than_it_began_with():
    """Of 1024 points at random 45 would hold a sum of 5 by a chance of one in two."""
    search = Search(toy_task(knobs=WIDE), seed=3)
    assert search.propose(20, by_sum)[0].predicted <= 3


def test_invalid_points_are_never_proposed():
    search = Search(toy_task(knobs=WIDE, valid=lambda p: p.a % 2 == 1), seed=0)
    assert all(p.point.a % 2 for predict in (nothing, by_sum) for p in search.propose(64, predict))


def test_the_fastest_are_told_apart_from_failures():
    search = Search(toy_task(), seed=0)
    search.learn(Failed(Point(2), "run crash", ""))
    search.learn(Measured(Point(4), 0.5, 0.0, 1.0))
    search.learn(Measured(Point(8), 0.4, 0.0, 1.0))
    assert [o.point.a for o in search.fastest(5)] == [8, 4]
    assert search.errors() == 1
