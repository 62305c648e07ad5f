"""Blocks by page without an engine: what can be taken has memory, and whole pages are found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kvcached_core.pool import Ledger

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What must be set before SGLang is imported, here for the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        yield


class Slots:
    """A stock with the list and the use of an allocator; checks whatever it does."""

    def __init__(self, num_blocks: int, per_page: int) -> None:
        from kvcached_core.engines.sglang.free_list import PageMap
        from kvcached_core.engines.sglang.stock import Stock

        self.ledger = Ledger(-(-num_blocks // per_page), 1)
        self.map = PageMap(num_blocks, per_page, "cpu")
        self.ready = {0}
        self.stock = Stock(self.ledger, self.map, self.ready.update)
        self.free = self.stock.clear()
        self.used: set[int] = set()
        self.step = 0
        self.total = num_blocks - 1

    def grow(self, pages: int) -> list[int]:
        grown = self.ledger.plan_growth(pages)
        self.ledger.grown(grown)
        self.stock.refresh()
        return grown

    def take(self, blocks: int) -> list[int]:
        self.free = self.stock.cover(self.free, blocks)
        taken = self.free[:blocks].tolist()
        self.free = self.free[blocks:]
        assert len(taken) == blocks
        assert not self.used & set(taken) and 0 not in taken
        assert {block // self.map.blocks_per_page for block in taken} <= self.ready
        self.used |= set(taken)
        return list(taken)

    def give(self, blocks: list[int]) -> None:
        import torch

        self.free = torch.cat((self.free, torch.tensor(blocks, dtype=torch.int64)))
        self.stock.note_freed(len(blocks))
        self.used -= set(blocks)

    def look(self, pages: int) -> None:
        if not self.stock.is_looking:
            self.free = self.stock.look(self.free, pages, self.step)

    def next(self) -> None:
        self.step += 1
        self.free = self.stock.settle(self.free, self.step)
        self.check()

    def retire(self, pages: int) -> list[int]:
        gone = self.ledger.retire_empty(pages)
        self.stock.refresh()
        assert not {block // self.map.blocks_per_page for block in self.used} & set(gone)
        self.ready -= set(gone)
        self.ledger.released(gone)
        return gone

    def available(self) -> int:
        return int(self.stock.available(len(self.free)))

    def check(self) -> None:
        self.ledger.check_integrity()
        unbacked = self.stock.unbacked(len(self.free))
        assert self.available() + unbacked + len(self.used) == self.total
        assert unbacked >= 0
        listed = self.free.tolist()
        assert len(set(listed)) == len(listed) and not self.used & set(listed)


def test_only_the_page_of_padding_is_there_at_first() -> None:
    slots = Slots(40, 8)
    assert slots.available() == 7
    assert slots.take(7) == [1, 2, 3, 4, 5, 6, 7]
    assert slots.available() == 0
    slots.check()


def test_a_page_of_one_block_leaves_none_to_padding() -> None:
    slots = Slots(5, 1)
    assert slots.available() == 0
    slots.grow(2)
    assert slots.take(2) == [1, 2]


def test_the_last_page_may_be_smaller() -> None:
    slots = Slots(20, 8)  # 7, 8 and 4 blocks
    slots.grow(2)
    assert slots.available() == 19
    taken = slots.take(19)
    assert sorted(taken) == list(range(1, 20))
    slots.give(taken)
    slots.look(2)
    assert slots.available() == 3  # two pages' worth is withheld
    slots.next()
    assert slots.ledger.empty_pages() == 0
    slots.next()
    assert slots.ledger.empty_pages() == 2
    assert slots.available() == 19
    assert sorted(slots.retire(2)) == [1, 2]
    assert slots.available() == 7


def test_what_is_used_keeps_its_page() -> None:
    slots = Slots(33, 8)
    slots.grow(3)
    taken = slots.take(31)
    slots.give([block for block in taken if block != 12])
    slots.look(3)
    slots.next()
    slots.next()
    assert slots.ledger.empty_pages() == 2  # not that of block 12
    assert slots.ledger.state_of(1) == "used"
    assert slots.available() == 30


def test_blocks_of_the_fullest_page_come_first() -> None:
    slots = Slots(33, 8)
    slots.grow(3)
    taken = slots.take(31)
    slots.give([b for b in taken if b // 8 == 1][:2] + [b for b in taken if b // 8 == 2][:5])
    slots.look(0)
    slots.next()
    slots.next()
    assert [block // 8 for block in slots.free.tolist()] == [1, 1, 2, 2, 2, 2, 2]


def test_what_is_withheld_can_be_called_back() -> None:
    slots = Slots(33, 8)
    slots.grow(3)
    slots.give(slots.take(31))
    slots.look(3)
    assert slots.available() == 7
    slots.free = slots.stock.restore(slots.free)
    assert slots.available() == 31
    slots.next()
    slots.next()
    assert slots.ledger.empty_pages() == 0


def test_a_look_in_vain_is_remembered_until_something_is_freed() -> None:
    slots = Slots(65, 8)
    slots.grow(7)
    taken = slots.take(63)
    slots.give([block for block in taken if block % 8 != 4])
    assert slots.stock.collectable_pages(len(slots.free)) == 6
    slots.look(6)
    slots.next()
    slots.next()
    assert slots.stock.collectable_pages(len(slots.free)) == 0
    slots.give([12])
    assert slots.stock.collectable_pages(len(slots.free)) == 1


def test_nothing_can_be_taken_while_it_is_suspended() -> None:
    slots = Slots(33, 8)
    slots.grow(1)
    slots.stock.suspended = True
    assert slots.available() == 0
    slots.check()
    assert len(slots.stock.cover(slots.free, 20)) == 7


def test_all_is_free_once_it_is_cleared() -> None:
    slots = Slots(33, 8)
    slots.grow(3)
    slots.give(slots.take(25)[3:9])
    slots.look(1)
    slots.used.clear()
    slots.free = slots.stock.clear()
    slots.check()
    assert slots.ledger.empty_pages() == 3
    assert slots.available() == 31


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_calls(seed: int) -> None:
    draw = random.Random(seed)
    slots = Slots(draw.randrange(30, 400), draw.choice([1, 2, 7, 16]))
    held: list[list[int]] = []
    calls: dict[str, Any] = {
        "grow": lambda: slots.grow(draw.randrange(1, 5)),
        "take": lambda: held.append(slots.take(draw.randint(0, slots.available()))),
        "give": lambda: held and slots.give(held.pop(draw.randrange(len(held)))),
        "look": lambda: slots.look(draw.randrange(0, 5)),
        "retire": lambda: slots.retire(draw.randrange(1, 3)),
        "restore": lambda: setattr(slots, "free", slots.stock.restore(slots.free)),
        "next": slots.next,
    }
    weights = [2, 4, 4, 3, 1, 0.3, 4]
    for _ in range(600):
        calls[draw.choices(list(calls), weights)[0]]()
        slots.check()
    for blocks in held:
        slots.give(blocks)
    while slots.stock.collectable_pages(len(slots.free)) or slots.stock.is_looking:
        slots.look(slots.map.num_pages)
        slots.next()
    assert slots.ledger.used_pages() == 1  # all but padding's are spare
