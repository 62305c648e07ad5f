"""Ranks of one instance on one device do not compete with each other."""

from __future__ import annotations

from pathlib import Path

from budget_peer import PLENTY

from kvcached_core.budget import Budget, Grant

CAPACITY = 1000


def budget_of(directory: Path) -> tuple[Budget, int, int]:
    """All of it with the two ranks of an instance, as memory that no request uses."""
    budget = Budget.open(str(directory), "host:siblings", CAPACITY, 0)
    rows = [budget.join("engine", rank, CAPACITY) for rank in (0, 1)]
    for row in rows:
        assert budget.lease(row, 500, PLENTY, 1000) == Grant.GRANTED
        budget.mark_created(row, 500)
        budget.set_idle(row, 400)
    return budget, rows[0], rows[1]


def test_nothing_is_asked_for_by_a_sibling(tmp_path: Path) -> None:
    budget, first, second = budget_of(tmp_path)
    budget.set_want(second, 100)
    assert budget.reclaim_target(first, PLENTY, CAPACITY) == 0
    stranger = budget.join("other", 0, CAPACITY)
    budget.set_want(stranger, 100)
    assert budget.reclaim_target(first, PLENTY, CAPACITY) == 50
    assert budget.reclaim_target(second, PLENTY, CAPACITY) == 50


def test_what_a_sibling_could_give_is_not_to_be_had(tmp_path: Path) -> None:
    budget, first, _ = budget_of(tmp_path)
    assert budget.reachable(first, PLENTY, CAPACITY) == 0
    stranger = budget.join("other", 0, CAPACITY)
    assert budget.reachable(stranger, PLENTY, CAPACITY) == 800


def test_a_share_counts_when_another_instance_wants(tmp_path: Path) -> None:
    budget, first, second = budget_of(tmp_path)
    budget.set_want(second, 100)
    assert budget.fair_share(first) == CAPACITY
    budget.set_want(budget.join("other", 0, CAPACITY), 600)
    assert budget.fair_share(first) < CAPACITY
