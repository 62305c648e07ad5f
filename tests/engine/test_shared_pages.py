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
