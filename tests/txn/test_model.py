"""The model check of docs/transactions.md: every state of small worlds, and that it can fail."""

from __future__ import annotations

import pytest

from kvcached_core.txn import Terms
from txn.explore import Counterexample, Found, Search
from txn.mutants import MUTANTS, mutant
from txn.world import NEVER, Limits, PageState, start

# A tick is a deadline: any of them may pass at any time. Whatever was sent may arrive at any time,
# so that nothing needs to be repeated.
ANY_TIME = Terms(retry=NEVER, grow=1, shrink=1, decide=1)


def explore(ranks: int, pages: tuple[PageState, ...], limits: Limits) -> Found:
    found = Search(limits).run(start(ranks, pages, ANY_TIME))
    print(f"{ranks} ranks, {pages}, {limits}: {found}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", ["virtual", "owned"])
def test_three_ranks_two_transactions_one_crash(page: PageState) -> None:
    found = explore(3, (page,), Limits())
    assert found.states > 40_000
    assert found.failures > 0
    assert found.outcomes == {("owned",), ("virtual",), ("lost",)}


@pytest.mark.slow
def test_two_transactions_at_once() -> None:
    found = explore(2, ("virtual", "owned"), Limits(crashes=0, losses=False))
    assert found.failures > 0
    assert len(found.outcomes) == 4


@pytest.mark.parametrize("pages", [("virtual", "virtual"), ("owned", "owned")])
def test_pages_of_one_transaction_have_ends_of_their_own(pages: tuple[PageState, ...]) -> None:
    found = explore(2, pages, Limits(transactions=1, pages_at_once=2))
    assert len(found.outcomes) == 9


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with mutant(name), pytest.raises(Counterexample) as caught:
        explore(2, ("owned",), Limits())
        explore(2, ("virtual",), Limits())
    print(caught.value)
    assert 2 <= len(caught.value.steps) <= 12
