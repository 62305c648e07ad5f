"""A rank whose pages are no whole granules: neighbours share memory, and one of them may be in use.

Budget, lease and driver must agree on granules, each counted once; see csrc/budget/rank_memory.h.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from rank_rig import GRANULE, PAGE, Member, Rig, eventually, rig

from kvcached_core.vmm import DriverError

# One extent of more than a granule, one of less; neither divides.
SHARED = (3 * GRANULE // 2, GRANULE // 3 + 1)
MOST = 2 * GRANULE + 2 * GRANULE  # of one page


def bytes_under(pages: Iterable[int]) -> int:
    """Of the granules that these pages touch."""
    found = set()
    for page in pages:
        for tensor, size in enumerate(SHARED):
            begin = page * size
            last = (begin + size - 1) // GRANULE
            found.update((tensor, granule) for granule in range(begin // GRANULE, last + 1))
    return len(found) * GRANULE


def begin_work(member: Member, page: int) -> None:
    for address, size in member.ranges(page):
        member.driver.begin_work(address, size)


def end_work(member: Member, page: int) -> None:
    for address, size in member.ranges(page):
        member.driver.end_work(address, size)


def test_a_shared_granule_is_leased_once(tmp_path: Path) -> None:
    with rig(tmp_path, extents=SHARED) as engine:
        member = engine.join()
        assert member.rank.page_bytes == MOST
        assert member.held() == bytes_under([0])
        owned = {0}
        for pages in ([3], [1, 2], [6, 5], [4, 7]):
            assert engine.grow(*pages)[0] == pages
            owned.update(pages)
            eventually(lambda: member.info().lease == member.info().created, "surplus back")
            assert member.held() == bytes_under(owned)
        member.rank.make_ready(sorted(owned))
        assert member.rank.mapped_bytes == bytes_under(owned)
        for pages in ([2], [4, 7, 1], [3, 5, 6]):
            engine.retire(pages)
            owned.difference_update(pages)
            assert member.held() == member.rank.mapped_bytes == bytes_under(owned)


@pytest.mark.parametrize("capacity", range(4, 12))
def test_pages_asked_for_at_once_are_granted_like_pages_asked_for_one_by_one(
    tmp_path: Path, capacity: int
) -> None:
    with rig(tmp_path, extents=SHARED, capacity=capacity) as engine:
        member = engine.join()
        fit = [0]
        while len(fit) < 8 and bytes_under(fit) + MOST <= capacity * PAGE:
            fit.append(len(fit))
        assert engine.grow(*range(1, 8))[0] == fit[1:]
        eventually(lambda: member.held() == bytes_under(fit), "surplus back")


def test_idle_memory_is_told_by_what_belongs_to_pages(tmp_path: Path) -> None:
    with rig(tmp_path, extents=SHARED) as engine:
        member = engine.join()
        engine.segment.set_wish(2)
        engine.segment.set_idle(3)
        eventually(lambda: member.info().want == 2 * MOST, "the most that they may need")
        eventually(lambda: member.info().idle == 3 * sum(SHARED), "idle")


@pytest.mark.parametrize("capacity", range(4, 9))
def test_no_limit_is_passed_and_what_fits_for_sure_is_granted(
    tmp_path: Path, capacity: int
) -> None:
    with rig(tmp_path, extents=SHARED, capacity=capacity) as engine:
        member = engine.join()
        owned = {0}
        for page in range(1, 8):
            left = capacity * PAGE - member.held()
            granted, _, partial = engine.grow(page)
            assert partial == []
            assert granted == ([page] if left >= MOST else [])
            owned.update(granted)
            assert member.held() == bytes_under(owned) <= capacity * PAGE
        assert engine.grow(*({*range(8)} - owned))[2] == []


def test_a_page_in_use_never_notices_its_neighbours(tmp_path: Path) -> None:
    with rig(tmp_path, extents=SHARED) as engine:
        member = engine.join()
        engine.grow(3)
        member.rank.make_ready([3])
        member.fill(3, 0x33)
        begin_work(member, 3)
        for turn in range(1, 6):
            assert engine.grow(2, 4)[0] == [2, 4]
            member.rank.make_ready([4, 2])
            for page in (2, 4):
                assert member.is_zero(page)
                member.fill(page, turn)
            engine.retire([2, 4])
        assert member.is_filled(3, 0x33)
        assert member.driver.violations() == 0
        end_work(member, 3)
        engine.retire([3])


KINDS = ["create", "map", "set_access", "zero", "unmap", "release", "free_bytes", "any"]


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_call_fails_the_accounts_are_right_and_a_retry_works(
    tmp_path: Path, kind: str
) -> None:
    with rig(tmp_path, extents=SHARED) as engine:
        member = engine.join()
        n = 0
        struck = True
        while struck:
            n += 1
            before = member.driver.counts()[kind]
            member.driver.fail_at(kind, n)
            live_once(engine, member)
            struck = member.driver.counts()[kind] - before >= n
            member.driver.fail_at(kind, 0)
            assert member.held() == bytes_under([0])
            assert not engine.segment.failure()
        least = {"zero": 2, "free_bytes": 2}.get(kind, 6)  # calls that one life makes
        assert n > least


def live_once(engine: Rig, member: Member) -> None:
    """Grows, uses, shrinks beside a neighbour, grows again and gives all back."""
    owned = {0}
    for pages in ([1, 2, 3], [2]):
        while wanted := [page for page in pages if page not in owned]:
            owned.update(engine.grow(*wanted)[0])
        eventually(lambda: member.info().lease == member.info().created, "surplus back")
        for page in pages:
            if page == 2 or len(pages) > 1:
                ready(member, page)
                assert member.is_zero(page)
                member.fill(page, page)
        if len(pages) > 1:
            gone(engine, member, [2])
            owned.discard(2)
    assert member.is_filled(1, 1) and member.is_filled(3, 3)
    gone(engine, member, [1, 2, 3])


def ready(member: Member, page: int) -> None:
    try:
        member.rank.make_ready([page])
    except DriverError as error:
        assert "injected" in str(error)
        member.rank.make_ready([page])


def gone(engine: Rig, member: Member, pages: list[int]) -> None:
    engine.retire(pages)
    engine.retire([page for page in pages if engine.segment.is_quarantined(page)])
    assert not any(engine.segment.is_quarantined(page) for page in pages)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life_beside_pages_in_use(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with rig(tmp_path, extents=SHARED, pages=24, capacity=30) as engine:
        member = engine.join()
        used: dict[int, int] = {}
        owned = {0}
        for turn in range(1, 80):
            virtual = sorted({*range(24)} - owned)
            owned.update(engine.grow(*rng.sample(virtual, rng.randint(0, len(virtual))))[0])
            step = rng.sample(sorted(owned), rng.randint(0, len(owned)))
            member.rank.make_ready(step)
            for page in step:
                assert member.is_filled(page, used.get(page, 0))
                if page not in used:
                    begin_work(member, page)
                used[page] = turn
                member.fill(page, turn)
            leaving = rng.sample(sorted(owned - {0}), rng.randint(0, len(owned) - 1))
            for page in leaving:
                if used.pop(page, None):
                    end_work(member, page)
            engine.retire(leaving)
            owned.difference_update(leaving)
            assert all(member.is_filled(page, value) for page, value in used.items())
            assert member.held() == bytes_under(owned)
        assert member.driver.violations() == 0
