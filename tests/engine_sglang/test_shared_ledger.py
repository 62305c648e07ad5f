"""Pages of two pools in one ledger: who grows, who gives, and what each is sure of."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvcached_core.pool import Ledger

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]


def shared(
    pages: tuple[int, ...] = (10, 20),
    shares: tuple[int, ...] = (3, 5),
    placed: tuple[int, ...] = (0, 1),
) -> Any:
    from kvcached_core.engines.sglang.shared_ledger import SharedLedger

    return SharedLedger([Ledger(n, 1) for n in pages], shares, placed)


def owned(ledger: Any) -> list[int]:
    return [one.pages("owned") for one in ledger.ledgers]


def grow(ledger: Any, pages: int) -> list[int]:
    ids: list[int] = ledger.plan_growth(pages)
    ledger.grown(ids)
    return ids


def test_ids_of_the_second_pool_follow_those_of_the_first() -> None:
    ledger = shared()
    ledger.want([2, 3], [2, 3])
    assert grow(ledger, 5) == [1, 2, 11, 12, 13]
    assert owned(ledger) == [3, 4]
    assert (ledger.num_pages(), ledger.pages("owned"), ledger.empty_pages()) == (30, 7, 5)
    assert (ledger.used_pages(), ledger.num_used()) == (2, 1)  # padding's two, one of them counted
    ids = ledger.ids(1, ledger.ledgers[1].retire_empty(2))
    assert ids == [13, 12]
    ledger.released(ids)
    assert owned(ledger) == [3, 2] and ledger.pages("virtual") == 25


def test_the_second_pool_may_have_the_first_ids() -> None:
    ledger = shared(placed=(1, 0))
    assert ledger.first == (20, 0)
    ledger.want([2, 3], [2, 3])
    assert grow(ledger, 5) == [21, 22, 1, 2, 3]
    assert owned(ledger) == [3, 4]
    ids = ledger.ids(0, ledger.ledgers[0].retire_empty(1))
    assert ids == [22]
    ledger.released(ids)
    assert owned(ledger) == [2, 4]


@pytest.mark.parametrize(
    ("pages", "lacking", "wanted", "got"),
    [
        (6, [2, 4], [2, 4], [2, 4]),
        (3, [2, 4], [2, 4], [1, 2]),  # in proportion
        (6, [1, 1], [1, 9], [1, 5]),  # what is lacking goes first
        (4, [0, 0], [0, 0], [2, 2]),  # a reserve, for whoever has fewest
        (40, [0, 30], [0, 30], [9, 19]),  # all there are
    ],
)
def test_who_grows(pages: int, lacking: list[int], wanted: list[int], got: list[int]) -> None:
    ledger = shared()
    ledger.want(lacking, wanted)
    grow(ledger, pages)
    assert owned(ledger) == [1 + n for n in got]


def test_what_is_on_its_way_is_not_asked_for_twice() -> None:
    ledger = shared()
    ledger.want([2, 2], [2, 2])
    assert ledger.plan_growth(4) == [1, 2, 11, 12]
    ledger.want([2, 3], [2, 3])
    assert ledger.plan_growth(1) == [13]


def test_a_reserve_goes_to_whoever_lacks_its_share() -> None:
    ledger = shared()
    ledger.want([4, 0], [4, 0])
    grow(ledger, 4)
    ledger.want([0, 0], [0, 0])
    grow(ledger, 4)
    assert owned(ledger) == [5, 5]


def test_a_pool_that_outgrows_its_share_takes_the_other_to_have_its_own() -> None:
    ledger = shared()
    assert ledger.with_shares([2, 0]) == [2, 0]
    assert ledger.with_shares([3, 0]) == [3, 4]
    assert ledger.with_shares([3, 7]) == [3, 7]
    assert ledger.with_shares([0, 5]) == [2, 5]
    assert ledger.with_shares([0, 0]) == [0, 0]


def test_what_a_pool_can_give_up() -> None:
    ledger = shared()
    assert [ledger.beyond_share(0), ledger.beyond_share(1)] == [1, 1]  # nobody has outgrown it
    ledger.want([4, 4], [4, 4])
    grow(ledger, 8)
    assert owned(ledger) == [5, 5]
    assert [ledger.beyond_share(0), ledger.beyond_share(1)] == [5, 0]
    ledger.want([0, 2], [0, 2])
    grow(ledger, 2)
    assert [ledger.beyond_share(0), ledger.beyond_share(1)] == [2, 2]


def test_one_pool_is_a_plain_ledger() -> None:
    ledger, plain = shared((10,), (3,)), Ledger(10, 1)
    assert grow(ledger, 4) == plain.plan_growth(4)
    assert ledger.with_shares([5]) == [5]
    assert ledger.beyond_share(0) == 5
    assert ledger.num_used() == 0


@pytest.mark.parametrize("seed", range(4))
def test_pages_are_in_one_state_each(seed: int) -> None:
    draw = random.Random(seed)
    ledger = shared()
    coming: list[int] = []
    for _ in range(300):
        if draw.random() < 0.5:
            goal = [draw.randrange(4), draw.randrange(4)]
            ledger.want(goal, goal)
            coming += ledger.plan_growth(draw.randrange(6))
        elif draw.random() < 0.5:
            draw.shuffle(coming)
            done, coming = coming[:3], coming[3:]
            draw.choice([ledger.grown, ledger.growth_failed])(done)
        else:
            at = draw.randrange(2)
            gone = ledger.ledgers[at].retire_empty(draw.randrange(3))
            draw.choice([ledger.released, ledger.released, ledger.quarantine])(ledger.ids(at, gone))
        for one in ledger.ledgers:
            one.check_integrity()
        states = ("virtual", "preparing", "owned", "retiring", "quarantined")
        assert sum(ledger.pages(state) for state in states) == ledger.num_pages()
