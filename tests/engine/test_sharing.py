"""Two engines that are both short: who waits, who gives, what is waited for; and sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage_pair import PAGE, PER_PAGE, Pair, until
from kvcached_core.budget import Budget

pytestmark = [pytest.mark.engine]

Make = Callable[..., Pair]
PAGES = 16  # of the budget


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    pairs: list[Pair] = []

    def build(name: str, **arguments: Any) -> Pair:
        pairs.append(Pair(tmp_path / "budget", name, **{"pages": PAGES, **arguments}))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()


def need(budget: Budget) -> None:
    """A third member lacks more than there is."""
    row = budget.join("third", 0, PAGES * PAGE)
    budget.set_want(row, PAGES * PAGE)


class Queue:
    """An engine with more requests than memory, each of `blocks` blocks."""

    def __init__(self, pair: Pair, blocks: int = PER_PAGE) -> None:
        self.pair, self.blocks = pair, blocks
        self.running: list[int] = []
        self._seed = 0

    def work(self) -> None:
        """A pass: one request ends, the next ones start as long as they are let in."""
        if self.running:
            self.pair.finish(self.running.pop(0))
        while (request := self._admit()) is not None:
            self.running.append(request)
        self.pair.step()
        self.pair.settle()
        wish, row = self.pair.storage.supply._wish, self.pair.rows[0]
        until(lambda: self._published(row).want == wish * PAGE, "wish")
        idle = self.pair.storage.supply._idle_pages
        until(lambda: self._published(row).idle == idle * PAGE, "idle")

    def _admit(self) -> int | None:
        self._seed += 1
        first = hash(self.pair.plan.instance) % 997 * 100_000 + self._seed * 100
        return self.pair.admit([first + i for i in range(2 * self.blocks)])

    def _published(self, row: int) -> Any:
        name = self.pair.plan.instance
        return next(found for found in self.pair.budget.rows() if found.instance == name)


# --- what could be given ---


def test_while_nobody_wants_memory_a_step_that_changes_what_is_idle_rings_nobody(
    make: Make,
) -> None:
    one, two = make("one"), make("two")

    def turn() -> None:
        running = one.admit(list(range(2 * 4 * PER_PAGE)))
        assert running is not None
        one.step()
        one.finish(running)
        one.step()

    turn()
    one.settle()
    calls = one.count_segment_calls()
    for _ in range(20):
        turn()
    assert calls["set_idle"] == 40 and "ring_ranks" not in calls
    two.storage.supply.publish_wish(PAGES)  # the watcher of one sees it
    until(lambda: two.want > 0 and one.idle == 4 * PAGE, "want and idle")
    turn()  # used again, or given away: told
    assert calls["ring_ranks"] > 0


# --- admission ---


def test_a_request_that_is_not_let_in_says_what_is_lacking(make: Make) -> None:
    one, two = make("one"), make("two")
    assert two.admit(list(range(2 * 14 * PER_PAGE))) is not None
    two.step()
    assert one.pool.get_num_free_blocks() < 8 * PER_PAGE
    assert one.admit(list(range(2 * 8 * PER_PAGE))) is None
    one.step()
    until(lambda: one.want == 8 * PAGE, "wish")
    one.storage.has_pending_update()
    until(lambda: one.want == 0, "withdrawal")


def test_what_is_free_is_not_asked_of_neighbours(make: Make) -> None:
    one, _ = make("one"), make("two")
    assert one.admit(list(range(2 * 4 * PER_PAGE))) is not None
    one.step()
    assert one.storage.supply._wish == 0


def test_what_strangers_hold_of_the_device_is_seen(make: Make) -> None:
    one = make("one")
    one.driver.quota(4 * PAGE)  # of a budget of four times that
    assert one.pool.reserve_blocks(10 * PER_PAGE) is False
    assert one.pool.get_num_free_blocks() <= 4 * PER_PAGE - 1
    one.step()
    one.driver.quota(None)

    def another_pass() -> bool:
        one.step()
        return bool(one.pool.reserve_blocks(10 * PER_PAGE))

    until(another_pass, "another look")
    one.step()  # gives back what nobody took
    one.settle()
    one.step()
    assert one.pool.get_num_free_blocks() == PAGES * PER_PAGE - 1


@pytest.mark.parametrize(
    ("weights", "shares"), [((100, 100), (8, 8)), ((300, 100), (12, 4)), ((100, 700), (2, 14))]
)
def test_two_saturated_engines_come_to_their_shares(
    make: Make, weights: tuple[int, int], shares: tuple[int, int]
) -> None:
    first, second = (
        Queue(make(name, weight=weight, caching=False, num_blocks=PAGES * PER_PAGE))
        for name, weight in zip(("one", "two"), weights, strict=True)
    )
    first.work()
    taken = first.pair.ledger.used_pages()
    assert taken >= PAGES - 2  # alone it takes all but the other's floor
    for _ in range(3 * PAGES):
        second.work()
        first.work()
    found = [queue.pair.ledger.used_pages() for queue in (first, second)]
    assert sum(found) >= PAGES - 1
    for pages, share in zip(found, shares, strict=True):
        assert abs(pages - share) <= 1, (found, shares)


def test_beyond_its_share_an_engine_without_requests_lets_one_in(make: Make) -> None:
    one = make("one", floor_pages=0)
    need(one.budget)
    assert one.admit(list(range(2 * 12 * PER_PAGE))) is not None
    one.step()
    assert one.admit(list(range(2))) is None


# --- a running request ---


def idle_cache(make: Make, **arguments: Any) -> tuple[Pair, int, Pair]:
    """`one` runs a request of a page; `two` has cached all of the rest, and rests."""
    one = make("one", **arguments)
    running = one.admit(list(range(2 * (PER_PAGE - 1))))
    assert running is not None
    one.step()
    two = make("two")
    held = two.admit(list(range(2 * (14 * PER_PAGE + 1))))
    assert held is not None
    two.step()
    two.finish(held)
    two.rest()
    until(lambda: two.idle == 14 * PAGE, "idle pages")
    return one, running, two


def test_a_running_request_waits_for_what_a_neighbour_only_caches(make: Make) -> None:
    one, running, two = idle_cache(make, reclaim_wait_ms=1000)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(one.extend(running, 3 * PER_PAGE)))
    asking.start()
    until(lambda: two.storage.has_pending_update(), "need")
    two.step()
    asking.join()
    assert answers == [True]
    one.step()


def test_a_waiting_request_does_not_hold_the_running_ones_up(make: Make) -> None:
    one, _, two = idle_cache(make, reclaim_wait_ms=1000, reserve_wait_ms=0)
    waits = one.count_budget_calls()
    assert one.admit(list(range(1000, 1000 + 2 * 3 * PER_PAGE))) is None
    assert waits.get("wait_event", 0) == 0
    one.step()
    until(lambda: two.storage.has_pending_update(), "need")


def test_a_wait_in_vain_ends(make: Make) -> None:
    one, running, _ = idle_cache(make, reclaim_wait_ms=20)
    assert one.extend(running, 3 * PER_PAGE) is False
    assert one.storage.supply._wish == 3


def test_what_nobody_can_give_is_not_waited_for(make: Make) -> None:
    one, running, _ = idle_cache(make, reclaim_wait_ms=1000)
    waits = one.count_budget_calls()
    assert one.extend(running, 2 * PAGES * PER_PAGE) is False
    assert waits.get("wait_event", 0) == 0


def test_what_the_limit_forbids_is_asked_of_nobody(make: Make) -> None:
    one, _ = make("one", limit=4 * PAGE), make("two")
    running = one.admit(list(range(2 * (4 * PER_PAGE - 1))))
    assert running is not None
    one.step()
    one.settle()
    calls = one.count_segment_calls()
    for _ in range(5):
        assert one.extend(running, 1) is False
        one.step()
        one.settle()
    assert calls.get("request", 0) <= 1
    assert calls.get("set_wish", 0) == 0


def test_an_engine_that_is_asked_to_give_does_not_wait(make: Make) -> None:
    one = make("one", reclaim_wait_ms=1000)
    running = one.admit(list(range(2 * (PER_PAGE - 1))))
    kept = one.admit(list(range(500, 500 + 2 * PER_PAGE)))
    assert running is not None and kept is not None
    one.step()
    one.finish(kept)  # its page is only cached now
    one.step()
    two = make("two")
    held = two.admit(list(range(2 * 13 * PER_PAGE)))
    assert held is not None
    two.step()
    two.finish(held)
    two.rest()
    until(lambda: two.idle >= 12 * PAGE and one.idle == PAGE, "idle pages")
    need(one.budget)
    assert one.storage.supply.pages_for_neighbours() == 1
    waits = one.count_budget_calls()
    assert one.extend(running, 8 * PER_PAGE) is False
    assert waits.get("wait_event", 0) == 0


def test_an_engine_in_which_nothing_can_run_sleeps_until_something_changes(make: Make) -> None:
    one, two = make("one"), make("two")
    held = two.admit(list(range(2 * 14 * PER_PAGE)))
    assert held is not None
    two.step()
    waits = one.count_budget_calls()
    for _ in range(5):
        assert one.admit(list(range(2 * 8 * PER_PAGE))) is None
        one.step()
    assert waits["wait_event"] == 5
    two.finish(held)
    two.step()
    waits.clear()
    assert one.admit(list(range(2))) is not None
    one.step()
    assert "wait_event" not in waits


# --- sleep ---


def sleep(pair: Pair) -> None:
    """As the worker half's suspend does, on every rank."""
    pair.storage.suspend()
    pair.epoch += 1
    pair.mapped = {0}
    for rank in pair.ranks:
        rank.retire(range(1, pair.plan.num_pages), pair.epoch)
    pair.settle()


def test_asleep_only_the_null_page_is_kept(make: Make) -> None:
    one = make("one", reserve_pages=4)
    held = one.admit(list(range(2 * 8 * PER_PAGE)))
    assert held is not None
    one.step()
    one.settle()
    with pytest.raises(RuntimeError, match=r"32 blocks are in use.*abort or finish"):
        one.storage.suspend()
    one.finish(held)
    one.step()
    sleep(one)
    assert one.lease == PAGE == one.rank.mapped_bytes == one.driver.held_bytes()
    assert one.ledger.pages("owned") == 1 and one.ledger.num_cached() <= PER_PAGE - 1
    one.check_cache()
    one.ledger.check_integrity()
    assert one.admit([1, 2]) is None and not one.pool.reserve_blocks(1)
    assert not one.storage.has_pending_update() and one.storage.take_update() is None


def test_growth_on_its_way_is_given_back_by_sleep(make: Make) -> None:
    one = make("one", reserve_wait_ms=0)
    one.driver.delay("create", 20_000)
    assert one.pool.reserve_blocks(3 * PER_PAGE) is False
    sleep(one)
    assert one.lease == PAGE == one.driver.held_bytes()


def test_awake_it_works_as_before(make: Make) -> None:
    one = make("one")
    held = one.admit(list(range(2 * 8 * PER_PAGE)))
    assert held is not None
    one.step()
    one.finish(held)
    one.step()
    sleep(one)
    one.storage.resume()
    assert one.admit(list(range(2 * 8 * PER_PAGE))) is not None
    one.step()
    one.settle()
