"""The contract of csrc/vmm/granules.h: pages of any size over granules that neighbours share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.vmm import (
    DriverError,
    Granules,
    InvalidArgument,
    OutOfMemory,
    Quarantined,
)

from .strip import PAGES, G, Strip
from .subject import DEADLINE, wait_for_call

pytestmark = pytest.mark.usefixtures("strips_over_each_driver")
SIZES = [1, 300, G // 4, G // 2 + 1, G, G + 1, 3 * G // 2, 2 * G, 9 * G // 4, 5 * G - 1]


@pytest.mark.parametrize("size", SIZES)
def test_granules_come_with_the_first_page_and_go_with_the_last(size: int) -> None:
    strip = Strip(size)
    for order in (range(PAGES), reversed(range(PAGES)), (3, 0, 5, 4, 1, 7, 2, 6)):
        held: list[int] = []
        for page in order:
            before = strip.held()
            strip.grow(page)
            held.append(page)
            assert strip.held() == len(strip.touched(held))
            assert (strip.held() - before) * G <= strip.pages.most_bytes
            assert strip.pages.mapped_bytes == strip.held() * G
            assert strip.readable() == strip.touched(held)
            assert strip.is_filled(page, 0)
            strip.fill(page, page + 1)
        assert all(strip.is_filled(page, page + 1) for page in held)
        while held:
            assert strip.pages.release(held.pop(len(held) // 2))
            assert strip.held() == len(strip.touched(held))
            assert strip.readable() == strip.touched(held)
            assert all(strip.is_filled(page, page + 1) for page in held)
    assert strip.held() == 0


@pytest.mark.parametrize("granules", [1, 3])
def test_whole_granules_are_one_mapping_a_page(granules: int) -> None:
    strip = Strip(granules * G)
    strip.grow(0, 1, 2)
    strip.pages.release(1)
    counts = strip.driver.counts()
    assert (counts["create"], counts["map"], counts["unmap"]) == (3, 3, 1)
    assert counts["zero"] == strip.zeroed(3)
    assert strip.pages.most_bytes == strip.page_bytes


def test_an_odd_page_is_at_most_three_mappings() -> None:
    strip = Strip(9 * G + G // 2)
    strip.grow(1)  # half a granule, nine, and nothing behind them
    assert strip.driver.counts()["map"] == 2
    strip.grow(2)
    strip.grow(3)
    assert strip.driver.counts()["map"] == 5
    assert strip.pages.most_bytes == 10 * G


@given(st.integers(1, 6 * G), st.integers(1, 40))
def test_no_page_takes_more_than_most_bytes(size: int, page: int) -> None:
    strip = Strip(size, page + 1)
    strip.pages.create(page)
    assert strip.held() == len(strip.touched([page]))
    assert strip.pages.created_bytes <= strip.pages.most_bytes
    assert strip.pages.most_bytes <= -(-size // G) * G + G
    strip.pages.close()


def test_a_page_is_zero_again_beside_a_neighbour_in_use() -> None:
    strip = Strip(G // 2)
    strip.grow(0, 1)
    strip.fill(0, 0xAA)
    strip.fill(1, 0xBB)
    strip.driver.begin_work(strip.at(1), strip.page_bytes)
    before = strip.driver.counts()
    strip.pages.release(0)
    strip.pages.create(0)
    strip.pages.map(0)
    assert strip.is_filled(0, 0) and strip.is_filled(1, 0xBB)
    assert strip.driver.violations() == 0
    edits = {kind for kind, calls in strip.driver.counts().items() if calls > before[kind]}
    assert edits == {"zero", "any"}


def test_fresh_neighbours_are_not_zeroed_again() -> None:
    strip = Strip(G // 2)
    for page in range(PAGES):
        strip.pages.create(page)
    for page in range(PAGES):
        strip.pages.map(page)
        strip.fill(page, page + 1)
    assert strip.driver.counts()["zero"] == strip.zeroed(strip.held())
    assert all(strip.is_filled(page, page + 1) for page in range(PAGES))


def test_misuse_is_refused() -> None:
    strip = Strip(G + 5)
    for size, pages in ((0, 1), (strip.arena.size, 2), (2**63, 3)):
        with pytest.raises(InvalidArgument, match="extent"):
            Granules(strip.arena, size, pages)
    calls: list[Callable[[int], object]] = [
        strip.pages.create,
        strip.pages.map,
        strip.pages.release,
        strip.pages.holds,
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=f"no page {PAGES}"):
            call(PAGES)
    with pytest.raises(InvalidArgument, match="page 2 does not hold"):
        strip.pages.map(2)
    strip.pages.create(2)
    with pytest.raises(InvalidArgument, match="page 2 holds"):
        strip.pages.create(2)
    assert strip.pages.release(2) and strip.pages.release(2)
    assert strip.held() == 0


# --- failures ---


def life(strip: Strip) -> Iterable[tuple[str, int]]:
    """Steps that share granules, reuse them beside a neighbour, and end with two pages held."""
    for page in (1, 2, 4, 3):
        yield "create", page
        yield "map", page
    yield "release", 2
    yield "create", 2
    yield "map", 2
    for page in (3, 1):
        yield "release", page


def run(strip: Strip, step: tuple[str, int]) -> None:
    name, page = step
    if name == "release":
        if not strip.pages.release(page):
            raise DriverError("injected: something is left")
        return
    getattr(strip.pages, name)(page)
    if name == "map":
        assert strip.is_filled(page, 0)
        strip.fill(page, page + 1)


KINDS = ["create", "map", "set_access", "zero", "unmap", "release"]


@pytest.mark.parametrize("size", [G // 2, 3 * G // 2, 2 * G, 9 * G // 4])
@pytest.mark.parametrize("kind", [*KINDS, "any"])
def test_whichever_call_fails_nothing_leaks_and_a_retry_works(kind: str, size: int) -> None:
    whole = Strip(size)
    for step in life(whole):
        run(whole, step)
    calls = whole.driver.counts()[kind]
    assert calls > 0 or (kind == "zero" and size % G == 0)
    if kind == "any":
        calls -= 1  # the arena's reserve
    for n in range(1, calls + 1):
        strip = Strip(size)
        strip.driver.fail_at(kind, n)
        ready: set[int] = set()
        failures = 0
        for name, page in life(strip):
            if name == "release":
                ready.discard(page)
            try:
                run(strip, (name, page))
            except DriverError as error:
                assert "injected" in str(error)
                failures += 1
                assert name == "release" or strip.pages.holds(page) == (name == "map")
                assert strip.held() >= len(strip.touched(ready))
                assert all(strip.is_filled(other, other + 1) for other in ready)
                run(strip, (name, page))
            if name == "map":
                ready.add(page)
            assert all(strip.is_filled(other, other + 1) for other in ready)
        assert failures == 1 and ready == {2, 4}
        assert strip.held() == len(strip.touched(ready))
        assert strip.readable() == strip.touched(ready)
        assert strip.pages.close() and strip.held() == 0


def test_what_a_failed_create_cannot_give_back_is_the_pages() -> None:
    strip = Strip(3 * G // 2)
    strip.driver.fail_at("create", 2)
    strip.driver.fail_always("release")
    with pytest.raises(DriverError):
        strip.pages.create(0)
    assert strip.pages.holds(0) and strip.held() == 1
    assert not strip.pages.release(0)
    strip.driver.reset()
    assert strip.pages.release(0) and strip.held() == 0


def test_a_neighbour_uses_what_a_page_could_not_give_back() -> None:
    strip = Strip(G // 2)
    strip.grow(0)
    strip.fill(0, 0xAA)
    for kind in ("unmap", "release"):
        strip.driver.fail_at(kind, 1)
        assert not strip.pages.release(0)
        strip.grow(1)
        assert strip.is_filled(1, 0) and strip.held() == 1
        assert strip.pages.release(0) and not strip.pages.holds(0)
        strip.fill(1, 0xBB)
        strip.grow(0)
        assert strip.is_filled(0, 0) and strip.is_filled(1, 0xBB)
        strip.fill(0, 0xAA)
        assert strip.pages.release(1)
    assert strip.pages.release(0) and strip.held() == 0


def test_a_lost_granule_costs_the_pages_that_touch_it_and_no_others() -> None:
    strip = Strip(3 * G // 2)  # 0 and 1 share granule 1; 2 and 3 share granule 4
    strip.pages.create(0)
    strip.pages.create(1)
    strip.driver.fail_at("set_access", 2)
    strip.driver.fail_at("unmap", 1)
    with pytest.raises(Quarantined):
        strip.pages.map(0)
    for _ in range(2):
        for page in (0, 1):
            with pytest.raises(Quarantined, match=f"page {page}"):
                strip.pages.map(page)
    strip.grow(2, 3)
    for page in (0, 1):
        assert not strip.pages.release(page)
        assert strip.pages.holds(page)
    assert strip.held() == 1 + len(strip.touched([2, 3]))
    assert strip.pages.close() and strip.held() == 0
    assert not any(strip.pages.holds(page) for page in range(PAGES))


def test_a_page_that_meets_a_lost_granule_later_is_refused_and_keeps_only_that() -> None:
    strip = Strip(3 * G // 2)
    strip.pages.create(0)
    strip.driver.fail_at("set_access", 2)
    strip.driver.fail_at("unmap", 1)
    with pytest.raises(Quarantined):
        strip.pages.map(0)
    strip.pages.release(0)
    with pytest.raises(Quarantined, match=r"page 1 touches .* lost"):
        strip.pages.create(1)
    assert strip.pages.holds(1) and strip.held() == 1


@pytest.mark.parametrize("kind", ["unmap", "release"])
def test_close_tells_what_is_left_and_may_be_repeated(kind: str) -> None:
    strip = Strip(3 * G // 2)
    strip.grow(0, 1, 2)
    strip.driver.fail_always(kind)
    assert not strip.pages.close()
    # What is only held, and no longer the arena's, is left too.
    assert strip.held() == len(strip.touched([0, 1, 2]))
    strip.driver.reset()
    assert strip.pages.close()
    assert strip.held() == 0 and strip.readable() == set()


@pytest.mark.parametrize("quota", [0, 1, 2, 3])
def test_too_little_memory_is_told_apart_and_leaves_nothing(quota: int) -> None:
    strip = Strip(5 * G // 2)  # page 1 touches three granules
    strip.driver.quota(quota * G)
    if quota < 3:
        with pytest.raises(OutOfMemory):
            strip.pages.create(1)
        assert strip.held() == 0
        strip.driver.quota()
    strip.grow(1)
    assert strip.held() == 3


# --- threads ---


def test_two_that_share_a_granule_map_it_once_and_both_wait_for_it() -> None:
    strip = Strip(G // 2, 2)
    strip.pages.create(0)
    strip.pages.create(1)
    strip.driver.delay("map", 200_000)
    mapped: list[int] = []

    def map_and_look(page: int) -> None:
        strip.pages.map(page)
        assert strip.is_filled(page, 0)
        mapped.append(page)

    threads = [threading.Thread(target=map_and_look, args=(page,)) for page in (0, 1)]
    for thread in threads:
        thread.start()
    wait_for_call(strip.driver, "map", 1)
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(mapped) == [0, 1]
    assert strip.driver.counts()["map"] == 1


def test_neighbours_come_and_go_while_pages_are_mapped_and_used() -> None:
    """One thread creates and releases, as the background does; another maps and uses."""
    strip = Strip(3 * G // 4, 16)
    errors: list[BaseException] = []
    mine = range(0, 16, 2)

    def use() -> None:
        try:
            for turn in range(1, 60):
                for page in mine:
                    strip.pages.map(page)
                    if turn == 1:
                        assert strip.is_filled(page, 0)
                        strip.driver.begin_work(strip.at(page), strip.page_bytes)
                    else:
                        assert strip.is_filled(page, turn - 1)
                    strip.fill(page, turn)
        except BaseException as error:
            errors.append(error)

    for page in mine:
        strip.pages.create(page)
    thread = threading.Thread(target=use)
    thread.start()
    while thread.is_alive():
        for page in range(1, 16, 2):
            strip.grow(page)
            assert strip.is_filled(page, 0)
            strip.fill(page, 0xFF)
        for page in range(1, 16, 2):
            assert strip.is_filled(page, 0xFF)
            assert strip.pages.release(page)
    thread.join(DEADLINE)
    assert errors == []
    assert strip.driver.violations() == 0
    assert strip.held() == len(strip.touched(mine))
