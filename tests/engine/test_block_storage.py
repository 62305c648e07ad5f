"""The scheduler's half, clause by clause of vLLM's KVBlockStorage, against a real pool and rank."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool

from engine.history import History
from engine.storage_pair import PAGE, PER_PAGE, Pair, replay, tokens, until
from kvcached_core.engines.vllm.log import logger
from kvcached_core.instance.budgets import RankLeft

pytestmark = [pytest.mark.engine, pytest.mark.conformance("interface")]

Make = Callable[..., Pair]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    pairs: list[Pair] = []

    def build(name: str = "one", **arguments: Any) -> Pair:
        directory = tmp_path / "budget"
        pairs.append(Pair(directory, name, **arguments))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()


# --- reservations ---


@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_reserved_blocks_can_be_popped_in_pieces(make: Make, pieces: int) -> None:
    pair = make()
    assert pair.admit(tokens(21), pieces) is not None
    pair.step()
    assert len({b.block_id for b in pair.requests[1]}) == 21


def test_all_that_is_available_can_be_reserved(make: Make) -> None:
    pair = make(pages=8)
    available = pair.pool.get_num_free_blocks()
    assert available == 8 * PER_PAGE - 1
    assert pair.pool.reserve_blocks(available)
    assert len(pair.pool.get_new_blocks(available)) == available
    assert pair.pool.get_num_free_blocks() == 0


def test_a_short_last_page_is_reserved_to_its_last_block(make: Make) -> None:
    pair = make(num_blocks=4 * PER_PAGE + 2)
    assert pair.pool.get_num_free_blocks() == 4 * PER_PAGE + 1
    assert pair.pool.reserve_blocks(4 * PER_PAGE + 1)
    pair.pool.get_new_blocks(4 * PER_PAGE + 1)


def test_nothing_is_evicted_by_questions_and_reservations(make: Make) -> None:
    pair = make(pages=4)
    request = pair.admit(tokens(12))
    assert request is not None
    pair.step()
    pair.finish(request)
    before = pair.cached()
    assert len(before) == 12
    pair.pool.get_num_free_blocks()
    assert pair.pool.reserve_blocks(15)
    assert not pair.pool.reserve_blocks(16)
    assert pair.cached() == before
    assert pair.ledger.num_cached() == 12


def test_cached_blocks_are_taken_when_nothing_else_is_left(make: Make) -> None:
    pair = make(pages=4)
    pair.finish(pair.admit(tokens(12)) or 0)
    assert pair.admit(tokens(15, seed=1)) is not None
    pair.check_cache()
    assert len(pair.cached()) == 15


def test_a_prefix_hit_is_counted_once(make: Make) -> None:
    pair = make(pages=4)
    pair.finish(pair.admit(tokens(15)) or 0)
    assert pair.admit(tokens(15)) is not None
    pair.check_cache()
    assert pair.pool.get_num_free_blocks() == 0


def test_a_lost_race_is_false_and_costs_nothing(make: Make) -> None:
    one, two = make("one", pages=8), make("two", pages=8)
    available = one.pool.get_num_free_blocks()
    assert available == 7 * PER_PAGE - 1
    assert two.admit(tokens(5 * PER_PAGE - 1)) is not None
    two.step()
    assert one.pool.reserve_blocks(available) is False
    one.ledger.check_integrity()
    assert one.ledger.num_used() == 0
    assert one.lease + two.lease <= 8 * PAGE
    assert one.ledger.pages("preparing") == 0


def test_a_refused_wait_ends_with_the_answer_not_with_the_deadline(make: Make) -> None:
    one, two = make("one", pages=4, reserve_wait_ms=1000), make("two", pages=4)
    assert two.admit(tokens(3 * PER_PAGE - 1)) is not None
    calls = one.count_segment_calls()
    for _ in range(5):
        assert one.pool.reserve_blocks(2 * PER_PAGE) is False
    # At most one answer to wait for a call; each wait ends with a change, so there are few.
    assert 1 <= calls["request"] <= 5
    assert calls.get("wait_progress", 0) <= 10


def test_without_a_wait_growth_is_there_the_next_time(make: Make) -> None:
    pair = make(reserve_wait_ms=0)
    pair.driver.delay("create", 20_000)
    assert pair.pool.reserve_blocks(PER_PAGE) is False
    pair.settle()
    assert pair.pool.reserve_blocks(PER_PAGE) is True


def test_a_wait_is_bounded_when_the_rank_does_not_answer(make: Make) -> None:
    pair = make(reserve_wait_ms=20)
    pair.driver.delay("create", 300_000)
    calls = pair.count_segment_calls()
    assert pair.pool.reserve_blocks(PER_PAGE) is False
    assert calls["wait_progress"] <= 3
    pair.settle()


def test_refused_growth_is_no_longer_counted_as_coming(make: Make) -> None:
    pair = make(pages=8)
    pair.driver.fail_always("create", "oom")
    assert pair.pool.reserve_blocks(3 * PER_PAGE) is False
    assert pair.ledger.pages("preparing") == 0
    assert pair.storage.supply.segment.outstanding() == 0


# --- updates ---


def test_a_page_is_told_once_an_ownership(make: Make) -> None:
    pair = make()
    first = pair.admit(tokens(5))
    update = pair.step()
    assert update is not None and list(update.map) == [0, 1]
    assert pair.admit(tokens(2, seed=1)) is not None
    assert pair.step() is None
    assert first is not None
    pair.finish(first)


def test_a_page_is_told_again_after_it_was_given_back(make: Make) -> None:
    pair = make(prefix_bound=0)
    for _ in range(3):
        request = pair.admit(tokens(6))
        assert request is not None
        update = pair.step()
        assert update is not None and 1 in update.map
        pair.finish(request)
        pair.rest()
        pair.settle()
        assert pair.ledger.pages("owned") == 1


def test_a_page_is_not_handed_out_before_its_release_is_known(make: Make) -> None:
    pair = make(num_blocks=2 * PER_PAGE, prefix_bound=0, reserve_wait_ms=0)
    assert pair.admit(tokens(3)) is not None
    until(lambda: pair.admit(tokens(4, seed=1)) is not None, "growth")
    pair.step()
    for r in list(pair.requests):
        pair.finish(r)
    update = pair.storage.take_update()
    assert update is not None and update.retire == (1,)
    # The rank does not hear of it: whatever is asked, page 1 stays where it is.
    for _ in range(3):
        assert pair.pool.reserve_blocks(PER_PAGE) is False
        assert pair.ledger.page_state(1) == "retiring"
    assert pair.pool.get_num_free_blocks() == PER_PAGE - 1
    pair.rank.retire(update.retire, update.epoch)
    pair.settle()
    assert pair.ledger.page_state(1) == "virtual"


def test_an_idle_engine_gives_back_all_but_the_reserve(make: Make) -> None:
    pair = make(reserve_pages=2, caching=False)
    request = pair.admit(tokens(30))
    assert request is not None
    pair.step()
    pair.settle()
    pair.finish(request)
    assert pair.rest() == 1
    pair.settle()
    assert pair.ledger.empty_pages() == 2
    assert pair.lease == 3 * PAGE


def test_empty_pages_of_a_paused_engine_do_not_make_it_spin(make: Make) -> None:
    # A paused request keeps its blocks, and the scheduler says that it has no unfinished ones.
    pair = make(reserve_pages=2, caching=False)
    kept = pair.admit(tokens(2))
    request = pair.admit(tokens(2 * PER_PAGE))
    assert kept is not None and request is not None
    pair.step()
    pair.settle()
    pair.step()
    pair.settle()
    pair.finish(request)
    # More than an idle engine keeps, not more than a busy one does.
    assert pair.ledger.empty_pages() == 4
    pair.rest()
    assert pair.requests


def test_growth_that_comes_after_the_engine_fell_asleep_is_given_back(make: Make) -> None:
    pair = make(reserve_wait_ms=0)
    woken: list[int] = []
    pair.storage.wakeup = lambda: woken.append(1)
    pair.driver.delay("create", 5_000)
    assert pair.pool.reserve_blocks(6 * PER_PAGE) is False  # and then the request is aborted
    pair.step()
    pair.rest()
    until(lambda: bool(woken), "wake-up")

    def home() -> bool:
        pair.rest()
        return pair.lease == PAGE

    until(home, "give back")


# --- several ranks ---


def test_a_page_that_only_some_ranks_got_goes_back_on_all(make: Make) -> None:
    pair = make(num_ranks=2, pages=20, num_blocks=40)
    pair.drivers[1].reset()
    pair.drivers[1].fail_at("create", 3, "oom")
    assert pair.pool.reserve_blocks(5 * PER_PAGE - 1) is False
    pair.settle()
    # Rank 0 holds five pages, rank 1 three: what counts is what both hold.
    assert pair.ledger.pages("owned") == 3
    assert pair.pool.reserve_blocks(3 * PER_PAGE - 1) is True
    update = pair.step()
    assert update is not None and sorted(update.retire) == [3, 4]
    pair.settle()
    assert pair.ledger.pages("preparing") == 0
    rows = {row.rank: row.created for row in pair.budget.rows()}
    assert rows == {0: 3 * PAGE, 1: 3 * PAGE}
    assert pair.admit(tokens(5 * PER_PAGE - 1)) is not None
    pair.step()


def test_an_abort_alone_is_a_pending_update(make: Make) -> None:
    pair = make(num_ranks=2, pages=20, num_blocks=40)
    pair.drivers[1].fail_always("create", "oom")
    assert pair.pool.reserve_blocks(2 * PER_PAGE) is False
    assert pair.rest() == 1
    pair.settle()
    assert pair.ledger.pages("virtual") == 9


def test_release_is_known_when_every_rank_has_done_it(make: Make) -> None:
    pair = make(num_ranks=2, pages=20, num_blocks=40, prefix_bound=0)
    request = pair.admit(tokens(6))
    assert request is not None
    pair.step()
    pair.finish(request)
    update = pair.storage.take_update()
    assert update is not None and update.retire == (1,)
    pair.ranks[0].retire(update.retire, update.epoch)
    assert pair.ranks[0].drain(20_000)
    pair.storage.has_pending_update()
    assert pair.ledger.page_state(1) == "retiring"
    pair.ranks[1].retire(update.retire, update.epoch)
    pair.settle()
    assert pair.ledger.page_state(1) == "virtual"


# --- the wish ---


def test_a_wish_is_published_and_withdrawn_when_the_need_is_met(make: Make) -> None:
    one, two = make("one", pages=8), make("two", pages=8)
    held = two.admit(tokens(6 * PER_PAGE - 1))
    assert held is not None
    two.step()
    assert one.pool.reserve_blocks(3 * PER_PAGE - 1) is False
    one.step()
    until(lambda: one.want == PAGE, "wish")
    two.finish(held)
    # What is unused reaches the record through the rank's thread; then it is given, though cached.
    until(lambda: two.rest() == 1, "give back")
    two.settle()
    assert one.admit(tokens(3 * PER_PAGE - 1)) is not None
    one.step()
    until(lambda: one.want == 0, "withdrawal")


def test_a_wish_is_withdrawn_after_an_abort(make: Make) -> None:
    one, two = make("one", pages=4), make("two", pages=4)
    assert two.admit(tokens(3 * PER_PAGE - 1)) is not None
    assert one.pool.reserve_blocks(2 * PER_PAGE) is False
    one.step()
    until(lambda: one.want > 0, "wish")
    one.storage.has_pending_update()  # no reservation comes any more
    until(lambda: one.want == 0, "withdrawal")


def test_what_a_waiting_request_has_got_already_is_kept(make: Make) -> None:
    one, two = make("one", pages=8, caching=False), make("two", pages=8)
    assert two.admit(tokens(2 * PER_PAGE - 1)) is not None
    for _ in range(3):
        assert one.pool.reserve_blocks(7 * PER_PAGE - 1) is False
        assert one.ledger.empty_pages() == 5
        assert one.step() is None


# --- reclaim ---


def lend(make: Make, **arguments: Any) -> tuple[Pair, Pair]:
    """`one` wants 4 pages, of which `two` holds 3, only cached, over its floor."""
    one = make("one", pages=8, **arguments)
    two = make("two", pages=8, floor_pages=2, **arguments)
    held = two.admit(tokens(7 * PER_PAGE - 1))
    assert held is not None
    two.step()
    two.finish(held)
    two.rest()
    assert one.pool.reserve_blocks(4 * PER_PAGE - 1) is False
    one.step()
    until(lambda: one.want == 3 * PAGE, "wish")
    return one, two


def test_cached_pages_are_given_to_a_neighbour_in_one_update(make: Make) -> None:
    one, two = lend(make)
    assert two.rest() == 1
    two.settle()
    two.check_cache()
    assert two.lease == 4 * PAGE
    assert one.admit(tokens(4 * PER_PAGE - 1)) is not None


def test_reclaim_stops_at_the_floor(make: Make) -> None:
    one, two = lend(make)
    assert one.pool.reserve_blocks(8 * PER_PAGE - 1) is False
    one.step()
    until(lambda: one.want == 7 * PAGE, "wish")
    two.rest()
    two.settle()
    assert two.lease == 2 * PAGE == two.plan.floor
    for _ in range(3):
        assert not two.storage.has_pending_update()


def test_growth_ahead_leaves_to_a_neighbour_what_it_waits_for(make: Make) -> None:
    one = make("one", pages=8)
    two = make("two", pages=8, reserve_pages=2, caching=False)
    kept = two.admit(tokens(2))
    held = two.admit(tokens(4 * PER_PAGE))
    assert kept is not None and held is not None
    two.step()
    two.settle()
    assert one.pool.reserve_blocks(7 * PER_PAGE - 1) is False
    one.step()
    until(lambda: one.want > 0, "wish")
    two.finish(held)
    for _ in range(5):
        two.step()
        two.settle()
    assert two.ledger.empty_pages() == 0
    assert two.lease == PAGE
    assert one.admit(tokens(7 * PER_PAGE - 1)) is not None


def test_an_idle_engine_is_woken_for_a_neighbour(make: Make) -> None:
    one = make("one", pages=8)
    two = make("two", pages=8)
    woken: list[int] = []
    two.storage.wakeup = lambda: woken.append(1)
    held = two.admit(tokens(7 * PER_PAGE - 1))
    assert held is not None
    two.step()
    two.finish(held)
    two.rest()
    assert not woken
    assert one.pool.reserve_blocks(4 * PER_PAGE - 1) is False
    until(lambda: bool(woken), "wake-up")


def test_a_want_smaller_than_a_page_is_worth_a_page(make: Make) -> None:
    two = make("two", pages=8)
    held = two.admit(tokens(8 * PER_PAGE - 1))
    assert held is not None
    two.step()
    two.finish(held)
    two.rest()
    row = two.budget.join("small", 0, 8 * PAGE)
    two.budget.set_want(row, PAGE // 4)
    until(lambda: two.budget.reclaim_target(two.row) > 0, "target")
    assert two.rest() == 1
    two.settle()
    assert two.lease == 7 * PAGE
    two.budget.set_want(row, 0)
    two.budget.leave(row)


# --- the reserve ---


def test_a_steady_state_asks_for_nothing(make: Make) -> None:
    pair = make(reserve_pages=2)
    assert pair.admit(tokens(9)) is not None
    for _ in range(3):
        pair.step()
        pair.settle()
    calls = pair.count_segment_calls()
    event, done = pair.budget.event(), pair.rank.counters()
    for _ in range(1000):
        assert pair.storage.take_update() is None
    assert not {"request", "set_wish", "set_idle", "wait_progress", "poll"} & set(calls)
    assert pair.budget.event() == event and pair.rank.counters() == done


@pytest.mark.parametrize("refusal", ["budget", "device"])
def test_a_reserve_that_cannot_be_had_is_not_asked_for_again_and_again(
    make: Make, refusal: str
) -> None:
    pair = make(pages=3 if refusal == "budget" else 8, reserve_pages=2)
    if refusal == "device":
        pair.driver.quota(3 * PAGE)
    assert pair.admit(tokens(9)) is not None
    for _ in range(5):
        pair.step()
        pair.settle()
    calls = pair.count_segment_calls()
    for _ in range(100):
        pair.step()
    assert calls.get("request", 0) == 0


def test_growth_runs_ahead_of_need(make: Make) -> None:
    pair = make(reserve_pages=2)
    assert pair.admit(tokens(2)) is not None
    pair.step()
    pair.settle()
    assert pair.ledger.empty_pages() == 2
    calls = pair.count_segment_calls()
    assert pair.admit(tokens(2 * PER_PAGE, seed=1)) is not None
    assert "request" not in calls


def test_the_reserve_rises_with_a_burst_and_falls_when_it_is_over(make: Make) -> None:
    pair = make(pages=32, num_blocks=128, reserve_pages=2, caching=False)
    assert pair.admit(tokens(6 * PER_PAGE)) is not None  # drew six pages, and met a shortage
    pair.step()
    pair.settle()
    assert pair.ledger.empty_pages() == 6
    calls = pair.count_segment_calls()
    second = pair.admit(tokens(6 * PER_PAGE))
    assert second is not None and "request" not in calls
    pair.step()
    pair.settle()
    assert pair.ledger.empty_pages() == 6
    for _ in range(100):
        pair.step()
        pair.settle()
    assert pair.ledger.empty_pages() <= 4
    assert pair.lease == pair.ledger.pages("owned") * PAGE


@pytest.mark.parametrize("paused", [0, 1])
def test_a_risen_reserve_is_dropped_at_once_when_nothing_runs(make: Make, paused: int) -> None:
    pair = make(pages=32, num_blocks=128, reserve_pages=2, caching=False)
    for _ in range(paused):
        assert pair.admit(tokens(2)) is not None  # keeps its blocks on the null page
    request = pair.admit(tokens(8 * PER_PAGE))
    assert request is not None
    pair.step()
    pair.settle()
    pair.finish(request)
    assert pair.ledger.empty_pages() >= 15
    pair.rest()
    pair.settle()
    assert pair.ledger.empty_pages() == 2


def test_a_risen_reserve_leaves_the_floors_of_others_alone(make: Make) -> None:
    one = make("one", pages=12, reserve_pages=2, caching=False)
    make("two", pages=12, floor_pages=3)
    assert one.admit(tokens(5 * PER_PAGE)) is not None
    one.step()
    one.settle()
    assert one.lease == 9 * PAGE  # six in use, and of a reserve of five what is left


def test_the_reserve_is_filled_from_a_neighbours_prefixes_before_anybody_is_short(
    make: Make,
) -> None:
    one, two = make("one", pages=10), make("two", pages=10, reserve_pages=2, caching=False)
    one.finish(one.admit(tokens(8 * PER_PAGE)) or 0)
    one.step()
    assert two.admit(tokens(PER_PAGE - 1)) is not None  # beside the null block
    two.step()
    assert two.ledger.empty_pages() == 0 == two.storage.supply._free_pages()

    def turn() -> bool:
        one.rest()
        one.settle()
        two.step()
        two.settle()
        return two.ledger.empty_pages() == 2

    until(turn, "a reserve")
    calls = two.count_segment_calls()
    assert two.admit(tokens(2 * PER_PAGE, seed=1)) is not None
    assert "wait_progress" not in calls and "request" not in calls
    two.clear()
    two.rest()
    until(lambda: two.want == 0, "the end of the wish")


def test_a_reserve_that_no_neighbour_can_give_is_not_wished_for(make: Make) -> None:
    one, two = make("one", pages=8), make("two", pages=8, reserve_pages=2, caching=False)
    assert one.admit(tokens(6 * PER_PAGE)) is not None
    one.step()
    assert two.admit(tokens(PER_PAGE - 1)) is not None
    for _ in range(3):
        two.step()
        two.settle()
    assert two.storage.supply.reserve_wish() == 0 == two.want
    assert two.ledger.empty_pages() == 0


# --- growth instead of eviction ---


def test_prefixes_are_kept_while_memory_is_to_be_had(make: Make) -> None:
    pair = make(pages=8)
    pair.finish(pair.admit(tokens(12)) or 0)
    before = pair.cached()
    assert pair.admit(tokens(15, seed=1), 100) is not None  # could be had by evicting 12
    pair.step()
    assert before.items() <= pair.cached().items()
    assert pair.ledger.pages("owned") == 7


def test_prefixes_go_before_memory_that_a_neighbour_waits_for(make: Make) -> None:
    one = make("one", pages=8)
    one.finish(one.admit(tokens(12)) or 0)
    row = one.budget.join("hungry", 0, 8 * PAGE)
    one.budget.set_want(row, PAGE)
    calls = one.count_segment_calls()
    assert one.admit(tokens(15, seed=1), 100) is not None
    assert "request" not in calls
    assert one.lease == 4 * PAGE
    one.budget.set_want(row, 0)
    one.budget.leave(row)


def test_growth_that_does_not_come_in_time_is_waited_for_once_a_pass(make: Make) -> None:
    pair = make(pages=8, reserve_wait_ms=20)
    pair.finish(pair.admit(tokens(12)) or 0)
    pair.driver.delay("create", 300_000)
    calls = pair.count_segment_calls()
    assert pair.admit(tokens(15, seed=1), 3) is not None  # five pops
    assert calls["request"] == 1 and calls["wait_progress"] <= 3
    pair.check_cache()
    pair.settle()


# --- the prefix cache ---


def test_reset_works_when_most_blocks_have_no_memory(make: Make) -> None:
    pair = make(pages=2, num_blocks=400)
    request = pair.admit(tokens(7))
    assert request is not None
    pair.step()
    assert pair.pool.reset_prefix_cache() is False  # one is in use
    pair.finish(request)
    assert pair.pool.reset_prefix_cache() is True
    pair.check_cache()
    assert pair.ledger.num_cached() == 0
    pair.rest()
    pair.settle()
    assert pair.lease == PAGE


def test_used_blocks_can_leave_the_prefix_cache(make: Make) -> None:
    pair = make()
    request = pair.admit(tokens(6))
    other = pair.admit(tokens(3, seed=1))
    assert request is not None and other is not None
    pair.step()
    pair.finish(other)
    pair.pool.evict_blocks({b.block_id for b in pair.pool.blocks[1:10]})
    pair.check_cache()
    assert pair.ledger.num_used() == 6 and pair.ledger.num_cached() == 0
    pair.finish(request)
    pair.check_cache()


@pytest.mark.parametrize(
    ("bound", "kept"),
    [("none", 4), (0, 0), (1, 1), (PAGE - 1, 1), (PAGE, 1), (2 * PAGE + 1, 2)],
)
def test_prefix_bound_counts_pages_that_only_the_cache_holds(
    make: Make, bound: Any, kept: int
) -> None:
    pair = make(prefix_bound=bound)
    request = pair.admit(tokens(5 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    pair.finish(request)
    pair.rest()
    pair.settle()
    pair.check_cache()
    assert pair.ledger.cached_only_pages() == kept
    assert pair.lease == (1 + kept) * PAGE


@pytest.mark.parametrize(("bound", "kept"), [("none", 2), (0, 0)])
def test_a_bound_of_nothing_holds_beside_blocks_in_use(make: Make, bound: Any, kept: int) -> None:
    pair = make(prefix_bound=bound)
    short = pair.admit(tokens(2))
    assert short is not None and pair.admit(tokens(3, seed=1)) is not None  # share pages 0 and 1
    pair.finish(short)
    pair.step()
    pair.check_cache()
    assert pair.ledger.num_cached() == kept
    assert len(pair.cached()) == 3 + kept


def test_a_bound_below_one_page_is_said_aloud(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *a: said.append(text % a))
    make(prefix_bound=PAGE - 1)
    assert len(said) == 1 and "prefix_bound" in said[0] and "one page is kept" in said[0]


def test_usage_is_used_over_used_and_available(make: Make) -> None:
    pair = make(pages=4)
    assert pair.pool.get_usage() == 0.0
    request = pair.admit(tokens(5))
    assert pair.pool.get_usage() == 5 / (4 * PER_PAGE - 1)
    assert pair.admit(tokens(10, seed=1)) is not None
    assert pair.pool.get_usage() == 1.0
    assert request is not None
    pair.finish(request)
    assert pair.pool.get_usage() == 10 / (4 * PER_PAGE - 1)


# --- failures and the end ---


def test_a_rank_that_has_ended_is_named_and_usage_is_told_all_the_same(make: Make) -> None:
    """vLLM tells usage among others when it says why it ends."""
    pair = make(num_ranks=2)
    assert pair.admit(tokens(5)) is not None
    before = pair.pool.get_usage()
    pair.ranks[1].close()
    at_hand = 2 * PER_PAGE - 1
    assert pair.pool.get_usage() == 5 / at_hand > before
    with pytest.raises(RankLeft, match=r"engine one: rank 1 has ended.* budget of host:default"):
        pair.storage.supply.obtainable_blocks(anew=True)


def test_a_failed_rank_stops_the_engine(make: Make) -> None:
    pair = make()
    assert pair.admit(tokens(5)) is not None
    pair.step()
    # The record and the rank disagree from here on: its thread finds out when it releases a page.
    pair.budgets[0].mark_released(pair.row, 2 * PAGE)
    pair.rank.retire([1], 1)
    until(lambda: bool(pair.storage.supply.segment.failure()), "failure")
    for call in (
        pair.storage.take_update,
        pair.storage.has_pending_update,
        lambda: pair.pool.reserve_blocks(10 * PER_PAGE),
    ):
        with pytest.raises(RuntimeError, match=r"engine one failed: rank 0: .*cannot release"):
            call()
    pair.budgets[0].lease(pair.row, PAGE, 2**64 - 1, 1000)
    pair.budgets[0].mark_created(pair.row, PAGE)


def test_a_page_lost_to_the_driver_is_never_handed_out_again(make: Make) -> None:
    pair = make(prefix_bound=0, num_blocks=3 * PER_PAGE)
    request = pair.admit(tokens(3 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    pair.finish(request)
    pair.driver.fail_at("unmap", 1)
    pair.rest()
    pair.settle()
    assert pair.ledger.pages("quarantined") == 1
    assert pair.pool.get_num_free_blocks() == 2 * PER_PAGE - 1
    assert pair.admit(tokens(2 * PER_PAGE - 1)) is not None
    pair.step()


@pytest.mark.conformance("shutdown")
def test_shutdown_is_idempotent_and_removes_the_segment(make: Make) -> None:
    pair = make()
    assert pair.plan.segment.exists()
    pair.storage.shutdown()
    assert not pair.plan.segment.exists()
    pair.storage.shutdown()


_LEFT_ALONE = """
import os, sys
from pathlib import Path
from engine.storage_pair import Pair

pair = Pair(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit(0)  # runs what is registered for the end of a process
assert os.waitpid(child, 0)[1] == 0
assert pair.plan.segment.exists(), "a forked child took the segment with it"
pair.admit(list(range(10)))
pair.step()
print(pair.plan.segment)
"""


@pytest.mark.conformance("shutdown")
def test_a_process_that_just_ends_leaves_nothing(tmp_path: Path) -> None:
    # No shutdown is called: the watcher must not be inside a native wait when the interpreter goes.
    command = [sys.executable, "-c", _LEFT_ALONE, str(tmp_path / "budget")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path(ended.stdout.split()[-1]).exists()


def test_a_second_pool_or_one_of_another_size_is_refused(make: Make) -> None:
    pair = make()
    for blocks in (64, 65):
        with pytest.raises(RuntimeError, match="block pool"):
            BlockPool(blocks, True, 2).attach_storage(pair.storage)


def test_a_pop_beyond_what_is_available_is_a_value_error(make: Make) -> None:
    pair = make(pages=1)
    with pytest.raises(ValueError):
        pair.pool.free_block_queue.popleft_n(PER_PAGE)
    assert pair.ledger.num_used() == 0


# --- histories ---


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bound", ["none", 0, 2 * PAGE])
def test_two_engines_on_one_budget_keep_every_promise(make: Make, seed: int, bound: Any) -> None:
    rng = random.Random(seed)
    common = {"pages": 10, "num_blocks": 50, "floor_pages": 2, "events": True}
    settings = {"prefix_bound": bound, "reserve_pages": rng.choice([0, 2]), "reserve_wait_ms": 20}
    pairs = [make(name, **common, **settings) for name in ("one", "two")]
    indexes: list[dict[Any, int]] = [{}, {}]
    history = History(rng, pairs, 10 * PAGE)
    for _ in range(150):
        which = rng.randrange(2)
        pair, index = pairs[which], indexes[which]
        for _ in range(rng.randrange(3)):
            history.change(pair)
        if rng.random() < 0.05:
            pair.pool.evict_blocks({rng.randrange(1, 50) for _ in range(5)})
        if rng.random() < 0.05:
            assert pair.pool.reset_prefix_cache() is (not pair.requests)
        history.step(pair)
        replay(pair.pool.take_events(), index)
        assert index == pair.cached()
    history.end(PAGE)
