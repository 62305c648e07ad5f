"""The ledger alone, on arrays of int32: what the core costs without Python objects."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvcached_core.pool import Ledger

NUM_BLOCKS = 65_536


@pytest.fixture(params=[1, 16])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    ledger = Ledger(NUM_BLOCKS, request.param)
    ledger.grown(ledger.plan_growth(ledger.num_pages()))
    return ledger


@pytest.mark.parametrize("n", [1, 128, 16_384])
@pytest.mark.parametrize("way", ["cached", "dead"])
def test_pop_and_give_back(benchmark: Any, ledger: Ledger, way: str, n: int) -> None:
    benchmark.group = f"core, {way}, n={n}"
    ids = array("i", bytes(4 * n))
    pop, push = ledger.pop_into, ledger.push_cached if way == "cached" else ledger.push_free

    def cycle() -> None:
        pop(ids)
        push(ids)

    benchmark(cycle)
    assert ledger.num_used() == 0


@pytest.mark.parametrize("pages", [1, 64])
def test_victims_of_a_full_cache(benchmark: Any, ledger: Ledger, pages: int) -> None:
    benchmark.group = f"core, victims for {pages} pages"
    ids = ledger.pop(ledger.available())
    ledger.push_cached(ids)
    victims = benchmark(ledger.victims_for_pages, pages)
    assert len(victims) == pages * ledger.blocks_per_page
