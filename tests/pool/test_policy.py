"""How many pages to grow and to give back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.pool import GrowthPolicy

COUNT = st.integers(0, 1000)


def after(low: int, *in_use: int, half_life: int = 4) -> GrowthPolicy:
    """A policy that has seen passes with so many pages in use; one at first."""
    policy = GrowthPolicy(low, half_life)
    for pages in in_use:
        policy.end_pass(pages)
    return policy


@pytest.mark.parametrize(("low", "half_life"), [(-1, 2), (1, 0), (1, -3)])
def test_arguments_are_checked(low: int, half_life: int) -> None:
    with pytest.raises(ValueError, match=f"low_pages={low}, half_life={half_life}"):
        GrowthPolicy(low, half_life)


# ---- the mark


def test_the_mark_is_the_low_one_at_first_and_in_a_steady_state() -> None:
    assert GrowthPolicy(2).mark == 2
    assert after(2, 1, 2, 3, 3, 4).mark == 2


def test_a_burst_raises_the_mark_to_what_it_drew() -> None:
    assert after(2, 1, 31).mark == 30
    assert after(2, 1, 31, 61).mark == 30  # and the next one finds it there


def test_steady_growth_is_covered_all_along() -> None:
    policy = GrowthPolicy(2)
    for step in range(1, 50):
        policy.end_pass(1 + 5 * step)
        assert policy.mark == 5


def test_pages_that_became_empty_are_no_demand() -> None:
    assert after(2, 1, 3, 1, 3).mark == 2


def test_a_shortage_is_demand_too() -> None:
    policy = GrowthPolicy(2)
    policy.end_pass(1, short_pages=20)
    assert policy.mark == 20


def test_a_spike_is_forgotten_by_half_each_half_life() -> None:
    policy = after(2, 0, 64, half_life=4)
    marks = []
    for _ in range(24):
        policy.end_pass(64)
        marks.append(policy.mark)
    assert marks[3::4] == [32, 16, 8, 4, 2, 2]
    assert marks == sorted(marks, reverse=True)


def test_a_smaller_burst_does_not_hide_a_larger_one() -> None:
    assert after(2, 0, 64, 64, 64, 74, half_life=4).mark == math.ceil(64 * 2 ** (-3 / 4))


def test_rest_forgets_at_once() -> None:
    policy = after(2, 0, 64)
    policy.rest()
    assert policy.mark == 2
    policy.end_pass(64)
    assert policy.mark == 2


def test_a_reserve_of_zero_stays_off() -> None:
    policy = after(0, 0, 64)
    assert policy.mark == 0
    assert policy.pages_to_grow(empty=0, preparing=0, short_pages=0) == 0
    assert policy.pages_to_grow(empty=0, preparing=0, short_pages=3) == 3
    assert policy.pages_to_retire(empty=1, preparing=0, idle=False) == 0
    assert policy.pages_to_retire(empty=2, preparing=0, idle=False) == 2
    assert policy.pages_to_retire(empty=1, preparing=0, idle=True) == 1


@given(low=st.integers(1, 50), passes=st.lists(st.integers(0, 500), max_size=40))
def test_the_mark_covers_the_latest_pass_and_never_exceeds_the_greatest(
    low: int, passes: list[int]
) -> None:
    policy = GrowthPolicy(low)
    drawn = [max(0, b - a) for a, b in zip([1, *passes], passes, strict=False)]
    for in_use, pages in zip(passes, drawn, strict=True):
        policy.end_pass(in_use)
        assert max(low, pages) <= policy.mark <= max([low, *drawn])


# ---- growth


@pytest.mark.parametrize(
    ("empty", "preparing", "short", "pages"),
    [
        (4, 0, 0, 0),
        (9, 0, 0, 0),
        (1, 0, 0, 3),
        (0, 0, 0, 4),
        (1, 2, 0, 1),
        (0, 9, 0, 0),
        (0, 0, 5, 9),
        (0, 3, 5, 6),
        (0, 9, 5, 0),
        (3, 0, 5, 9),  # the three are spoken for
    ],
)
def test_growth_covers_the_shortage_and_the_reserve(
    empty: int, preparing: int, short: int, pages: int
) -> None:
    assert GrowthPolicy(4).pages_to_grow(empty, preparing, short) == pages
    assert after(1, 0, 4, half_life=100).pages_to_grow(empty, preparing, short) == pages


# ---- retirement


@pytest.mark.parametrize(
    ("empty", "preparing", "idle", "pages"),
    [
        (8, 0, False, 0),
        (9, 0, False, 5),
        (4, 0, True, 0),
        (5, 0, True, 1),
        (9, 0, True, 5),
        (9, 1, False, 0),
        (9, 1, True, 0),
        (0, 0, True, 0),
    ],
)
def test_retirement_starts_above_the_mark_and_ends_at_it(
    empty: int, preparing: int, idle: bool, pages: int
) -> None:
    assert GrowthPolicy(4).pages_to_retire(empty, preparing, idle) == pages


def test_surplus_goes_back_as_the_mark_decays() -> None:
    """64 pages drawn, 64 in reserve for the next such pass, which does not come."""
    policy = after(2, 0, 64, half_life=4)
    empty, kept = 64, []
    for _ in range(30):
        policy.end_pass(64)
        empty -= policy.pages_to_retire(empty, 0, idle=False)
        assert empty >= policy.mark
        kept.append(empty)
    assert kept[3] <= 34 and kept[7] <= 18 and kept[-1] <= 4
    assert policy.pages_to_retire(64, 0, idle=True) == 62  # asleep: to the low mark at once


@pytest.mark.parametrize("name", ["empty", "preparing", "short_pages"])
def test_negative_counts_are_refused(name: str) -> None:
    counts = {"empty": 1, "preparing": 1, "short_pages": 1, name: -3}
    with pytest.raises(ValueError, match=f"{name} is -3"):
        GrowthPolicy(1).pages_to_grow(**counts)


def test_negative_counts_are_refused_in_other_calls() -> None:
    policy = GrowthPolicy(1)
    with pytest.raises(ValueError, match="empty is -1"):
        policy.pages_to_retire(-1, 0, idle=False)
    with pytest.raises(ValueError, match="preparing is -1"):
        policy.pages_to_retire(1, -1, idle=False)
    with pytest.raises(ValueError, match="in_use is -1"):
        policy.end_pass(-1)
    with pytest.raises(ValueError, match="short_pages is -1"):
        policy.end_pass(1, -1)


@given(low=COUNT, drawn=COUNT, empty=COUNT, preparing=COUNT, idle=st.booleans(), short=COUNT)
def test_neither_side_undoes_the_other(
    low: int, drawn: int, empty: int, preparing: int, idle: bool, short: int
) -> None:
    policy = after(low, 0, drawn)
    mark = policy.low_pages if idle else policy.mark
    after_shrinking = empty - policy.pages_to_retire(empty, preparing, idle)
    assert after_shrinking >= min(empty, mark)
    if after_shrinking < empty and not idle:
        assert policy.pages_to_grow(after_shrinking, preparing, 0) == 0
    grown = policy.pages_to_grow(empty, preparing, short)
    at_hand = preparing + grown + (0 if short else empty)
    assert at_hand >= short + policy.mark
    if grown:
        assert at_hand == short + policy.mark
        # once they are here and the shortage is served, nothing goes back
        assert policy.pages_to_retire(at_hand - short, 0, idle=False) == 0
