"""The engine's free queue in C++: blocks as objects, in and out."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

from kvcached_core.pool import BlockQueue, Ledger


@dataclass
class Block:
    """A block as any engine has it: with a dictionary."""

    block_id: Any


@dataclass(slots=True)
class Slotted:
    """A block as vLLM has it."""

    other: str
    block_id: Any


class Computed:
    """A block whose id is found by running code, although it has slots."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def block_id(self) -> int:
        return self.number


MAKERS = {"plain": Block, "slotted": lambda i: Slotted("x", i), "computed": Computed}


def make(kind: str = "slotted", **more: Any) -> tuple[BlockQueue[Any], Ledger, list[Any]]:
    """Seven free blocks on two pages of four."""
    ledger = Ledger(8, 4)
    ledger.grown(ledger.plan_growth(1))
    blocks = [MAKERS[kind](i) for i in range(8)]
    return BlockQueue(blocks, ledger, **more), ledger, blocks


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_blocks_go_out_and_come_back(kind: str) -> None:
    queue, ledger, blocks = make(kind)
    assert queue.num_free_blocks == 7
    out = queue.popleft_n(3) + queue.popleft_n(2)
    assert [b.block_id for b in out] == [1, 2, 3, 4, 5]
    assert all(b is blocks[b.block_id] for b in out)
    assert queue.num_free_blocks == 2
    queue.prepend_n(out[:2])
    queue.append_n(iter(out[:1:-1]))
    assert ledger.free_ids() == [1, 2, 6, 7, 5, 4, 3]
    assert queue.popleft_n(0) == []
    queue.remove(blocks[4])
    assert ledger.state_of(4) == "used"
    ledger.check_integrity()


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_what_does_not_fit_changes_nothing(kind: str) -> None:
    queue, ledger, blocks = make(kind)
    used = queue.popleft_n(3)
    before = ledger.free_ids()
    with pytest.raises(ValueError, match="5 blocks asked for, 4 available"):
        queue.popleft_n(5)
    with pytest.raises(TypeError):
        queue.popleft_n("1")  # type: ignore[arg-type]
    for push in (queue.append_n, queue.prepend_n):
        with pytest.raises(AttributeError, match="block_id"):
            push([*used, object()])
        for wrong in ("1", None):
            with pytest.raises(TypeError):
                push([*used, MAKERS[kind](wrong)])
        with pytest.raises(ValueError, match="block 2 is"):
            push([*used, blocks[2]])
        with pytest.raises(TypeError):
            push(blocks[0])
    with pytest.raises(ValueError, match="take: block 1 is used"):
        queue.remove(blocks[1])
    assert ledger.free_ids() == before and ledger.num_used() == 3
    ledger.check_integrity()


def test_a_slot_without_a_value_is_an_attribute_error() -> None:
    queue, _, blocks = make()
    queue.popleft_n(3)
    del blocks[2].block_id
    with pytest.raises(AttributeError, match="block_id"):
        queue.append_n([blocks[1], blocks[2]])


def test_a_block_of_another_type_than_the_pools() -> None:
    queue, ledger, _ = make()
    queue.popleft_n(3)
    queue.prepend_n([Block(1), Computed(2), Slotted("y", 3)])
    assert ledger.num_used() == 0


def test_a_block_that_shortens_the_list_while_it_is_read() -> None:
    """Reading block_id may run any code: only the items that are left are read."""
    queue, ledger, _ = make("plain")
    queue.popleft_n(3)
    items: list[Any] = []

    class Shortens:
        @property
        def block_id(self) -> int:
            items.clear()
            return 1

    items.extend([Shortens(), Block(2), Block(3)])
    queue.prepend_n(items)
    assert [ledger.state_of(b) for b in (1, 2, 3)] == ["free", "used", "used"]


def test_the_pools_own_list_may_change_without_harm() -> None:
    queue, _, blocks = make()
    first = blocks[1]
    blocks.clear()
    assert queue.popleft_n(1)[0] is first


def test_before_evict_is_called_only_when_free_blocks_are_short() -> None:
    asked: list[int] = []
    ledger = Ledger(12, 4)
    queue = BlockQueue([Block(i) for i in range(12)], ledger, before_evict=asked.append)
    queue.append_n(queue.popleft_n(2))
    queue.popleft_n(1)
    assert asked == []
    queue.popleft_n(1)
    assert asked == [1]
    assert ledger.num_cached() == 1


def test_before_evict_may_add_free_blocks_or_fail() -> None:
    ledger = Ledger(12, 4)

    def grow(n: int) -> None:
        if n > 5:
            raise OSError("no more")
        ledger.grown(ledger.plan_growth(1))

    queue = BlockQueue([Block(i) for i in range(12)], ledger, grow)
    assert len(queue.popleft_n(5)) == 5
    with pytest.raises(OSError, match="no more"):
        queue.popleft_n(6)
    assert ledger.num_used() == 5


def test_arguments_are_checked() -> None:
    ledger = Ledger(4, 4)
    with pytest.raises(ValueError, match="the list has 3 blocks, the ledger 4"):
        BlockQueue([Block(i) for i in range(3)], ledger)
    with pytest.raises(TypeError):
        BlockQueue((), ledger)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a Ledger"):
        BlockQueue([], object())  # type: ignore[arg-type]
    queue = BlockQueue([Block(i) for i in range(4)], ledger)
    with pytest.raises(RuntimeError, match="initialized already"):
        queue.__init__([], ledger)  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="not initialized"):
        BlockQueue.__new__(BlockQueue).popleft_n(1)


def test_a_ring_through_the_queue_is_collected() -> None:
    class Subclass(BlockQueue[Any]):
        pass

    def ring() -> Any:
        ledger = Ledger(4, 4)
        queue = Subclass([Block(i) for i in range(4)], ledger, lambda n: queue)
        return weakref.ref(queue)

    found = ring()
    gc.collect()
    assert found() is None


def test_the_queue_keeps_its_ledger() -> None:
    queue, ledger, _ = make()
    del ledger
    gc.collect()
    assert len(queue.popleft_n(7)) == 7
