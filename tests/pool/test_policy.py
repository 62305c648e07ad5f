"""How many pages to grow and to give back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.pool import GrowthPolicy

COUNT = st.integers(0, 1000)


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (3, 2), (-2, -1)])
def test_marks_are_checked(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"low_pages={low}, high_pages={high}"):
        GrowthPolicy(low, high)


def test_equal_marks_are_allowed() -> None:
    assert GrowthPolicy(2, 2).pages_to_retire(empty=3, preparing=0, idle=False) == 1
    assert GrowthPolicy(0, 0).pages_to_grow(empty=0, preparing=0, short_pages=0) == 0


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
    assert GrowthPolicy(4, 8).pages_to_grow(empty, preparing, short) == pages


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
def test_retirement_starts_above_the_mark_and_ends_at_the_low_one(
    empty: int, preparing: int, idle: bool, pages: int
) -> None:
    assert GrowthPolicy(4, 8).pages_to_retire(empty, preparing, idle) == pages


@pytest.mark.parametrize("name", ["empty", "preparing", "short_pages"])
def test_negative_counts_are_refused(name: str) -> None:
    counts = {"empty": 1, "preparing": 1, "short_pages": 1, name: -3}
    with pytest.raises(ValueError, match=f"{name} is -3"):
        GrowthPolicy(1, 2).pages_to_grow(**counts)


def test_negative_counts_are_refused_when_shrinking() -> None:
    with pytest.raises(ValueError, match="empty is -1"):
        GrowthPolicy(1, 2).pages_to_retire(-1, 0, idle=False)
    with pytest.raises(ValueError, match="preparing is -1"):
        GrowthPolicy(1, 2).pages_to_retire(1, -1, idle=False)


@given(low=COUNT, span=COUNT, empty=COUNT, preparing=COUNT, idle=st.booleans(), short=COUNT)
def test_neither_side_undoes_the_other(
    low: int, span: int, empty: int, preparing: int, idle: bool, short: int
) -> None:
    policy = GrowthPolicy(low, low + span)
    after_shrinking = empty - policy.pages_to_retire(empty, preparing, idle)
    assert after_shrinking >= min(empty, low)
    if after_shrinking < empty:
        assert policy.pages_to_grow(after_shrinking, preparing, 0) == 0
    grown = policy.pages_to_grow(empty, preparing, short)
    at_hand = preparing + grown + (0 if short else empty)
    assert at_hand >= short + low
    if grown:
        assert at_hand == short + low
        # once they are here and the shortage is served, nothing goes back
        assert policy.pages_to_retire(at_hand - short, 0, idle) == 0
