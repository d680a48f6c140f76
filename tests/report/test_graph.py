"""Repeated layers are told once, and nothing is lost by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_compile.report.graph import fold


@pytest.mark.parametrize(
    ("items", "folded"),
    [
        ("", []),
        ("abc", [(1, "abc")]),
        ("abab", [(2, "ab")]),
        ("abcbcbcd", [(1, "a"), (3, "bc"), (1, "d")]),
        ("aabaabaab", [(3, "aab")]),  # the layer, not the two that are alike in it
        ("aaaa", [(4, "a")]),
    ],
)
def test_the_longest_repetition_is_told_once(items, folded):
    assert fold(items) == folded


@given(st.text("ab", max_size=24))
def test_unfolding_gives_back_the_whole(items):
    assert "".join(piece * times for times, piece in fold(items)) == items
