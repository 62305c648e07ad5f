"""What transactions ask of a rank: memory that nobody may use before the decision, or after it."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_rig import GRANULE, PAGE, PATIENCE_S, Member, eventually, rig

from kvcached_core.vmm import DriverError

SHARED = (3 * GRANULE // 2,)  # two pages on three granules
Outcome = tuple[str, int, list[int], list[int]]


def outcome(member: Member) -> Outcome:
    """The next one; there must be no other."""
    assert select.select([member.rank.outcomes_fd()], [], [], PATIENCE_S)[0], "no outcome"
    (only,) = member.rank.take_outcomes()
    return only


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with rig(tmp_path, capacity=6) as engine:
        made = engine.join()
        made.rank.outcomes_fd()
        yield made


def take(member: Member, *pages: int) -> Outcome:
    member.rank.take(1, pages)
    return outcome(member)


def own(member: Member, *pages: int) -> None:
    """Pages that are owned, mapped and written to."""
    assert take(member, *pages) == ("attempted", 1, [*pages], [])
    member.rank.settle(1, pages, ())
    assert outcome(member) == ("settled", 1, [], [])
    member.rank.make_ready(pages)
    for page in pages:
        member.fill(page, 7)


def unmap(member: Member, *pages: int) -> Outcome:
    member.rank.unmap(2, pages)
    return outcome(member)


def test_what_is_taken_is_usable_once_it_is_settled(member: Member) -> None:
    assert take(member, 1, 2) == ("attempted", 1, [1, 2], [])
    assert member.pages_held() == 3
    with pytest.raises(RuntimeError, match=r"does not own page 1, .*: it is in a transaction"):
        member.rank.make_ready([1])
    member.rank.settle(1, [1], [2])
    assert outcome(member) == ("settled", 1, [], [])
    assert member.pages_held() == 2
    member.rank.make_ready([1])
    assert member.is_zero(1)
    with pytest.raises(RuntimeError, match="does not own page 2"):
        member.rank.make_ready([2])


def test_what_there_is_no_room_for_is_refused(member: Member) -> None:
    assert take(member, *range(1, 8)) == ("attempted", 1, [1, 2, 3, 4, 5], [])
    member.rank.settle(1, (), range(1, 6))
    assert outcome(member) == ("settled", 1, [], [])
    assert member.pages_held() == 1


def test_what_is_unmapped_keeps_its_memory(member: Member) -> None:
    own(member, 1, 2)
    assert unmap(member, 1) == ("attempted", 2, [1], [])
    assert member.pages_held() == 3
    assert not member.is_mapped(1)
    assert member.is_filled(2, 7)
    with pytest.raises(RuntimeError, match=r"does not own page 1, .*: it is in a transaction"):
        member.rank.make_ready([1])


def test_what_was_unmapped_is_owned_again_and_zero(member: Member) -> None:
    own(member, 1)
    unmap(member, 1)
    member.rank.settle(2, [1], ())
    assert outcome(member) == ("settled", 2, [], [])
    member.rank.make_ready([1])
    assert member.is_zero(1)


def test_what_was_unmapped_is_released(member: Member) -> None:
    own(member, 1)
    unmap(member, 1)
    member.rank.settle(2, (), [1])
    assert outcome(member) == ("settled", 2, [], [])
    assert member.pages_held() == 1
    own(member, 1)


def test_neighbours_in_a_granule_are_left_alone(tmp_path: Path) -> None:
    with rig(tmp_path, extents=SHARED, pages=4) as engine:
        member = engine.join()
        member.rank.outcomes_fd()
        own(member, 2, 3)  # granules 3 and 4, and 4 and 5
        held = member.held()
        assert unmap(member, 3) == ("attempted", 2, [3], [])
        assert member.is_filled(2, 7)
        assert member.held() == held
        assert not member.arenas[0].is_mapped(5 * GRANULE)
        member.rank.settle(2, [3], ())
        outcome(member)
        member.rank.make_ready([3])
        assert member.is_zero(3)
        assert member.is_filled(2, 7)
        member.fill(3, 9)
        unmap(member, 2)
        assert member.is_filled(3, 9)
        member.rank.settle(2, (), [2])
        outcome(member)
        assert member.is_filled(3, 9)
        assert member.held() == held - GRANULE


def test_what_cannot_be_unmapped_stays_owned(member: Member) -> None:
    own(member, 1, 2)
    member.driver.fail_at("unmap", 1)
    assert unmap(member, 1, 2) == ("attempted", 2, [2], [])
    member.rank.make_ready([1])
    assert member.is_mapped(1)
    assert unmap(member, 1) == ("attempted", 2, [1], [])


def test_memory_that_the_driver_keeps_is_lost(member: Member) -> None:
    own(member, 1)
    unmap(member, 1)
    member.driver.fail_at("release", 1)
    member.rank.settle(2, (), [1])
    assert outcome(member) == ("settled", 2, [], [1])
    assert take(member, 1) == ("attempted", 1, [], [1])


def test_a_driver_without_memory_refuses(member: Member) -> None:
    member.driver.fail_at("create", 1, "oom")
    assert take(member, 1, 2) == ("attempted", 1, [], [])
    assert member.pages_held() == 1


def test_fences_are_told_of(member: Member) -> None:
    member.rank.retire((), 5)
    assert outcome(member) == ("fenced", 5, [], [])


def test_nobody_is_told_who_did_not_ask(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.rank.retire((), 5)
        assert member.rank.drain(PATIENCE_S * 1000)
        member.rank.outcomes_fd()
        assert member.rank.take_outcomes() == []


@pytest.mark.parametrize("act", ["settle", "unmap", "unmap the null page"])
def test_a_page_that_is_not_the_transactions_ends_the_rank(tmp_path: Path, act: str) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        if act == "settle":
            member.rank.settle(1, [3], ())
            text = "a transaction ends for page 3, which rank 0 has not prepared"
        else:
            page = 0 if act != "unmap" else 3
            member.rank.unmap(1, [page])
            text = f"page {page} is to be unmapped, which rank 0 does not own"
        eventually(lambda: bool(engine.segment.failure()), "failure")
        assert text in engine.segment.failure()


def test_all_goes_back_in_the_middle_of_transactions(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.rank.outcomes_fd()
        own(member, 1, 2)
        unmap(member, 1)
        take(member, 3)
        assert member.pages_held() == 4


def test_a_device_without_pages_is_no_page(member: Member) -> None:
    with pytest.raises(RuntimeError, match="there is no page 99"):
        member.rank.take(1, [99])
    with pytest.raises(RuntimeError, match="there is no page 99"):
        member.rank.settle(1, (), [99])


def test_a_driver_error_while_a_page_is_mapped_again(member: Member) -> None:
    own(member, 1)
    unmap(member, 1)
    member.driver.fail_always("map", "oom")
    member.rank.settle(2, [1], ())
    outcome(member)
    with pytest.raises(DriverError):
        member.rank.make_ready([1])
    member.driver.reset()
    member.rank.make_ready([1])
    assert member.is_zero(1)
    assert member.held() == 2 * PAGE
