"""What the scheduler's half records of its pages, with a real pool and rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.storage_pair import PER_PAGE, Pair
from kvcached_core.budget import read_segment

pytestmark = [pytest.mark.engine]


def lives(pair: Pair) -> dict[int, list[tuple[str, str]]]:
    """Each page's transitions, as the scheduler's half saw them."""
    found: dict[int, list[tuple[str, str]]] = {}
    for t in read_segment(str(pair.plan.segment))["transitions"]:
        if t["who"] == "scheduler":
            found.setdefault(t["page"], []).append((t["from"], t["to"]))
    return found


GROWN = [("virtual", "preparing"), ("preparing", "owned")]
GONE = [("owned", "retiring"), ("retiring", "virtual")]


def test_every_page_that_comes_and_goes_is_recorded(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "budget")
    try:
        request = pair.admit([*range(2 * 5 * PER_PAGE)])
        assert request is not None
        pair.step()
        steady = lives(pair)
        assert len(steady) >= 5 and all(life == GROWN for life in steady.values())
        pair.step()
        assert lives(pair) == steady
        pair.finish(request)
        pair.pool.reset_prefix_cache()
        pair.rest()
        pair.settle()
        virtual = {p for p in steady if pair.ledger.page_state(p) == "virtual"}
        assert len(virtual) >= 3
        assert {page: lives(pair)[page] for page in virtual} == dict.fromkeys(virtual, GROWN + GONE)
    finally:
        pair.close()


def test_a_page_that_is_lost_is_recorded(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "budget")
    try:
        request = pair.admit([*range(2 * 5 * PER_PAGE)])
        assert request is not None
        pair.step()
        pair.finish(request)
        pair.pool.reset_prefix_cache()
        pair.driver.fail_at("unmap", 1)
        pair.rest()
        pair.settle()
        (lost,) = [p for p in lives(pair) if pair.ledger.page_state(p) == "quarantined"]
        assert lives(pair)[lost] == [*GROWN, ("owned", "retiring"), ("retiring", "quarantined")]
    finally:
        pair.close()
