"""Places of tensors with known lifetimes: sound, small, and the same every time."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_compile.passes.plan_memory.packing import (
    ALIGNMENT,
    Lifetime,
    extent,
    live_bytes,
    lower_bound,
    overlap,
    place,
    slot_sizes,
    slots,
)


@st.composite
def lifetimes(draw):
    """Up to 30 tensors over up to 20 steps; most sizes are what kernels ask for, some odd."""
    steps = draw(st.integers(1, 20))
    sizes = st.one_of(st.sampled_from([64, 4096, 12288, 65536]), st.integers(1, 5000))

    def one():
        first = draw(st.integers(0, steps - 1))
        return Lifetime(draw(sizes), first, draw(st.integers(first, steps - 1)))

    return [one() for _ in range(draw(st.integers(0, 30)))]


def brute_force_bound(found):
    """Bytes alive in the fullest step, step by step."""
    steps = range(max((one.last for one in found), default=0) + 1)
    return max(sum(o.nbytes for o in found if o.first <= s <= o.last) for s in steps)


def share_a_byte(found, offsets):
    """Pairs that are alive in one step and lie over each other, by comparing all."""
    ends = [at + one.nbytes for one, at in zip(found, offsets, strict=True)]
    return [
        (i, j)
        for i, j in combinations(range(len(found)), 2)
        if found[i].meets(found[j]) and offsets[i] < ends[j] and offsets[j] < ends[i]
    ]


@given(lifetimes())
@settings(deadline=None)
def test_no_two_that_are_alive_at_once_share_a_byte(found):
    offsets = place(found, effort=20_000)
    assert share_a_byte(found, offsets) == []
    assert overlap(found, offsets) is None
    assert all(at >= 0 and at % ALIGNMENT == 0 for at in offsets)


@given(lifetimes())
@settings(deadline=None)
def test_an_arena_is_between_the_bound_and_slots_laid_end_to_end(found):
    padded = [Lifetime(one.padded, one.first, one.last) for one in found]
    stacked = sum(slot_sizes(padded, slots(found)))
    assert lower_bound(found) == brute_force_bound(found)
    assert lower_bound(found) <= extent(found, place(found, effort=20_000)) <= stacked


@given(lifetimes())
@settings(deadline=None)
def test_tensors_of_a_slot_never_meet(found):
    chosen = slots(found)
    sizes = slot_sizes(found, chosen)
    together = [
        (i, j)
        for i, j in combinations(range(len(found)), 2)
        if chosen[i] == chosen[j] and found[i].meets(found[j])
    ]
    assert together == []
    assert all(one.nbytes <= sizes[slot] for one, slot in zip(found, chosen, strict=True))
    assert lower_bound(found) <= sum(sizes) <= sum(one.nbytes for one in found)


@given(lifetimes())
@settings(deadline=None)
def test_equal_lifetimes_get_equal_places(found):
    assert place(found, effort=5_000) == place(list(found), effort=5_000)


@given(lifetimes(), st.data())
@settings(deadline=None)
def test_an_overlap_is_found_wherever_it_is(found, data):
    offsets = [64 * data.draw(st.integers(0, 40)) for _ in found]
    assert (overlap(found, offsets) is None) == (share_a_byte(found, offsets) == [])


# In units of a cache line. Placed by size, by area, by length or by time they take 11, and slots
# of their own 12, where 9 will do.
FRAGMENTED = [
    Lifetime(64 * nbytes, first, last)
    for nbytes, first, last in [(5, 0, 2), (4, 0, 0), (1, 2, 3), (3, 4, 4), (3, 2, 4), (3, 3, 4)]
]


def test_the_search_reaches_what_no_single_order_does():
    assert extent(FRAGMENTED, place(FRAGMENTED, effort=0)) == 64 * 11
    assert extent(FRAGMENTED, place(FRAGMENTED)) == lower_bound(FRAGMENTED) == 64 * 9


def test_without_any_effort_the_places_are_still_sound():
    assert overlap(FRAGMENTED, place(FRAGMENTED, effort=0)) is None


def test_nothing_needs_no_arena():
    assert place([]) == slots([]) == slot_sizes([], []) == []
    assert lower_bound([]) == extent([], []) == 0


@pytest.mark.parametrize(
    ("last", "expected"), [(0, [100, 10, 0]), (1, [100, 110, 0]), (2, [100, 110, 100])]
)
def test_a_tensor_is_alive_from_its_first_step_to_its_last(last, expected):
    assert live_bytes([Lifetime(100, 0, last), Lifetime(10, 1, 1)], 3) == expected
