"""Both halves with pages that are no whole granules: promises hold, and memory finds its way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import storage_pair
from engine.history import History
from engine.storage_pair import PER_PAGE, Pair, tokens, until
from kvcached_core.vmm import HOST_GRANULARITY

pytestmark = [pytest.mark.engine]

PAGE = 3 * HOST_GRANULARITY // 2
MOST = 2 * HOST_GRANULARITY  # that a page can need

Make = Callable[..., Pair]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(storage_pair, "BLOCK_BYTES", PAGE // PER_PAGE)
    monkeypatch.setattr(storage_pair, "PAGE", PAGE)
    pairs: list[Pair] = []

    def build(name: str, **arguments: Any) -> Pair:
        pairs.append(Pair(tmp_path / "budget", name, **arguments))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()
        assert all(driver.held_bytes() == 0 for driver in pair.drivers)


def test_the_scheduler_reckons_with_the_most_that_a_page_can_need(make: Make) -> None:
    pair = make("one", pages=16)
    assert pair.plan.page_bytes == pair.rank.page_bytes == MOST
    assert pair.lease == MOST
    room = 16 * PAGE - pair.lease
    assert pair.pool.get_num_free_blocks() <= PER_PAGE - 1 + room // MOST * PER_PAGE
    assert pair.pool.reserve_blocks(pair.pool.get_num_free_blocks())
    assert pair.lease <= 16 * PAGE


def test_what_one_engine_caches_reaches_another_that_needs_it(make: Make) -> None:
    common = {"pages": 12, "num_blocks": 40, "floor_pages": 0}
    one, two = make("one", **common), make("two", **common)
    request = two.admit(tokens(7 * PER_PAGE, seed=1))
    assert request is not None
    two.step()
    two.finish(request)
    one.admit(tokens(1))

    def admitted() -> bool:
        if one.admit(tokens(4 * PER_PAGE, seed=2)) is not None:
            return True
        one.step()
        two.rest()
        two.settle()
        return False

    until(admitted, "memory comes over")
    one.step()
    two.check_cache()
    assert sum(row.lease for row in one.budget.rows()) <= 12 * PAGE


def fill(pair: Pair, pages: int) -> None:
    """One request a page; the null block is in the first one's."""
    assert pair.admit(tokens(PER_PAGE - 1, seed=100)) is not None
    for seed in range(101, 100 + pages):
        assert pair.admit(tokens(PER_PAGE, seed=seed)) is not None
        pair.step()


def test_prefixes_over_all_of_its_limit_keep_no_request_out(make: Make) -> None:
    """The pages then touch fewer granules than each of them could."""
    pair = make("one", pages=12, num_blocks=80)
    assert pair.admit(tokens(1)) is not None  # it runs all the time
    for seed in range(1, 21):
        request = pair.admit(tokens(PER_PAGE, seed=seed))
        assert request is not None, f"number {seed}"
        pair.step()
        pair.finish(request)
    assert pair.ledger.used_pages() * MOST > pair.plan.limit >= pair.lease


def test_it_wishes_for_all_that_its_limit_leaves(make: Make) -> None:
    one, two = make("one", pages=12, floor_pages=0), make("two", pages=12, floor_pages=0)
    fill(two, 2)
    fill(one, 9)
    assert 9 * MOST >= one.plan.limit >= one.lease + MOST
    assert not one.pool.reserve_blocks(PER_PAGE)
    one.step()
    until(lambda: one.want == MOST, "wish")


def test_so_many_pages_go_to_a_neighbour_as_its_want_takes(make: Make) -> None:
    one, two = make("one", pages=12, floor_pages=0), make("two", pages=12, floor_pages=0)
    fill(two, 8)
    two.clear()
    two.rest()
    two.settle()
    assert not one.pool.reserve_blocks(7 * PER_PAGE)
    one.step()
    until(lambda: one.want > 3 * MOST and two.storage.supply.is_asked(), "wish")
    two.storage.supply.publish_idle(resting=True)
    until(lambda: two.idle == two.storage.supply.unused_pages() * PAGE, "idle")
    target = two.budget.reclaim_target(two.row)
    assert 2 * PAGE < target < two.idle
    assert two.storage.supply.pages_for_neighbours() == -(-target // PAGE) > -(-target // MOST)


@pytest.mark.parametrize("seed", range(3))
def test_two_engines_on_one_budget_keep_every_promise(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    common = {"pages": 12, "num_blocks": 50, "floor_pages": 2, "reserve_wait_ms": 20}
    pairs = [make(name, **common, reserve_pages=rng.choice([0, 2])) for name in ("one", "two")]
    history = History(rng, pairs, 12 * PAGE)
    for _ in range(150):
        pair = rng.choice(pairs)
        history.change(pair)
        history.step(pair)
    history.end(MOST)
