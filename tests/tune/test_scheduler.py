"""Which task gets the next round."""

import pytest

from mlc_compile.tune.scheduler import Standing, next_task, shares


def test_each_gets_a_round_first_the_heaviest_before_the_others():
    standings = [Standing(0.2), Standing(0.5), Standing(0.3)]
    order = []
    while len(order) < 3:
        number = next_task(standings)
        order.append(number)
        standings[number].rounded(gain=0.5, seconds=1, unseen=0.5)
    assert order == [1, 2, 0]


def test_the_heaviest_five_get_three_rounds_before_gains_decide():
    standings = [Standing(share) for share in (0.3, 0.2, 0.15, 0.14, 0.13, 0.08)]
    order = []
    for _ in range(6 + 5 + 5):
        number = next_task(standings)
        order.append(number)
        standings[number].rounded(gain=0, seconds=1, unseen=0.5)
    assert order == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def seasoned(share):
    """A task that has had the rounds that are its due."""
    return Standing(share, rounds=3)


def test_gain_a_second_decides_then():
    slow, quick = seasoned(0.5), seasoned(0.5)
    slow.rounded(gain=0.1, seconds=10, unseen=0.5)
    quick.rounded(gain=0.1, seconds=1, unseen=0.5)
    assert next_task([slow, quick]) == 1


def test_hope_fades_with_rounds_that_gain_nothing():
    tired, fresh = seasoned(0.5), seasoned(0.4)
    for _ in range(4):
        tired.rounded(gain=0, seconds=1, unseen=0.9)
    fresh.rounded(gain=0, seconds=1, unseen=0.9)
    assert next_task([tired, fresh]) == 1


def test_what_was_seen_to_its_end_is_done():
    done = Standing(1.0)
    done.rounded(gain=0.5, seconds=1, unseen=0.0)
    assert next_task([done]) is None
    assert next_task([]) is None


def test_a_token_and_a_prompt_count_alike():
    calls = [{"decode": 28}, {"decode": 1, "prefill": 1}, {"prefill": 28}]
    found = shares(calls, [10, 70, 1000])
    assert sum(found) == pytest.approx(1)
    assert found[0] == pytest.approx(0.5 * 280 / 350)
    assert found[2] == pytest.approx(0.5 * 28000 / 28070)
