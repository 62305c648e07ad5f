"""An engine whose two ranks lie on two devices: a page costs on both, and what it may have is what
the scarcer one leaves. Over host memory, and over a look-alike of a GPU's library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage_pair import DEVICES, PAGE, PER_PAGE, Pair, tokens, until
from engine.test_watcher import kill, member
from kvcached_core.budget import open_host_budget
from kvcached_core.instance.budgets import Budgets
from kvcached_core.vmm import HOST_GRANULARITY
from lookalike import Machine

pytestmark = [pytest.mark.engine]

Make = Callable[..., Pair]
PAGES = 16  # of each device


@pytest.fixture
def machine() -> Machine:
    return Machine("cuda", HOST_GRANULARITY)


@pytest.fixture(params=["host", "cuda"])
def make(request: pytest.FixtureRequest, machine: Machine, tmp_path: Path) -> Iterator[Make]:
    pairs: list[Pair] = []
    shape: dict[str, Any] = {"num_ranks": 2, "devices": 2, "pages": PAGES, "transacted": True}
    if request.param == "cuda":
        shape["make_driver"] = machine.driver

    def build(name: str = "one", **arguments: Any) -> Pair:
        pairs.append(Pair(tmp_path / "budget", name, **{**shape, **arguments}))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()
    assert machine.used() == machine.violations() == 0


class Neighbour:
    """A member of the second device's budget only."""

    def __init__(self, directory: Path) -> None:
        self._budget = open_host_budget(directory, DEVICES[1].removeprefix("host:"), PAGES * PAGE)
        self._row = self._budget.join("two", 0, PAGES * PAGE)

    def want(self, pages: int) -> None:
        self._budget.set_want(self._row, pages * PAGE)

    def hold(self, pages: int) -> None:
        self._budget.lease(self._row, pages * PAGE, 1 << 60, 1000)
        self._budget.mark_created(self._row, pages * PAGE)

    def give(self, pages: int) -> None:
        self._budget.mark_released(self._row, pages * PAGE)

    def leave(self) -> None:
        self._budget.leave(self._row)


@pytest.fixture
def neighbour(make: Make, tmp_path: Path) -> Iterator[Neighbour]:
    made = Neighbour(tmp_path / "budget")
    yield made
    made.leave()


def created(pair: Pair) -> list[int]:
    """Pages that each rank has memory for, of its own device."""
    rows = [budget.rows() for budget in pair.budgets]
    return [next(r.created for r in of if r.instance == "one") // PAGE for of in rows]


def test_each_device_is_had_whole(make: Make) -> None:
    pair = make()
    assert pair.admit(tokens(PAGES * PER_PAGE - 1)) is not None
    pair.step()
    assert created(pair) == [PAGES, PAGES]
    pair.clear()
    pair.pool.reset_prefix_cache()
    pair.rest()
    pair.settle()
    assert created(pair) == [1, 1]


def test_the_scarcer_device_decides(make: Make, neighbour: Neighbour) -> None:
    pair = make()
    neighbour.hold(10)
    assert pair.pool.get_num_free_blocks() == 6 * PER_PAGE - 1
    assert pair.admit(tokens(7 * PER_PAGE - 1)) is None
    assert pair.admit(tokens(6 * PER_PAGE - 1)) is not None
    pair.step()
    assert created(pair) == [6, 6]
    neighbour.give(10)


def test_what_was_refused_is_tried_again_when_that_device_has_news(
    make: Make, neighbour: Neighbour
) -> None:
    pair = make()
    neighbour.hold(10)
    assert not pair.pool.reserve_blocks(7 * PER_PAGE - 1)
    pair.step()
    pair.settle()
    neighbour.give(10)
    assert pair.admit(tokens(7 * PER_PAGE - 1)) is not None
    pair.step()
    assert created(pair) == [7, 7]


def test_an_idle_engine_is_woken_for_a_neighbour_on_any_device(
    make: Make, neighbour: Neighbour
) -> None:
    pair = make(prefix_bound=f"{PAGES * PAGE}B")
    assert pair.admit(tokens(PAGES * PER_PAGE - 1)) is not None
    pair.step()
    pair.clear()
    pair.rest()
    pair.settle()
    assert created(pair) == [PAGES, PAGES]
    woken = threading.Event()
    pair.storage.wakeup = woken.set
    neighbour.want(5)
    assert woken.wait(10)
    until(pair.storage.has_pending_update, "what the neighbour wants is seen")
    pair.step()
    pair.settle()
    assert created(pair) == [PAGES - 5, PAGES - 5]
    neighbour.want(0)


def test_memory_that_comes_free_on_any_device_ends_a_wait(make: Make, neighbour: Neighbour) -> None:
    pair = make(reclaim_wait_ms=1000)
    request = pair.admit(tokens(PER_PAGE))
    assert request is not None
    neighbour.hold(10)
    budgets: Budgets = pair.storage.supply.budgets
    for _ in range(3):
        seen, begun = budgets.event(), time.monotonic()
        timer = threading.Timer(0.05, lambda: neighbour.give(1))
        timer.start()
        budgets.wait_event(seen, 10_000)
        timer.join()
        assert 0.04 < time.monotonic() - begun < 5
    begun = time.monotonic()
    budgets.wait_event(budgets.event(), 30)
    assert 0.025 < time.monotonic() - begun < 5
    neighbour.give(7)


def test_the_dead_of_any_device_give_back_without_anybody_asking(
    make: Make, tmp_path: Path
) -> None:
    pair = make()
    with member(tmp_path / "budget", DEVICES[1], 10 * PAGE) as other:
        assert pair.storage.supply.budgets.least_pages("available") == PAGES - 11
        kill(other)
        available = pair.storage.supply.budgets.least_pages
        until(lambda: available("available") == PAGES - 1, "the dead one's memory")


def test_nothing_is_unmapped_on_either_device_under_a_step(
    machine: Machine, tmp_path: Path
) -> None:
    shape: dict[str, Any] = {"num_ranks": 2, "devices": 2, "pages": PAGES, "transacted": True}
    pair = Pair(tmp_path / "budget", prefix_bound=0, make_driver=machine.driver, **shape)
    request = pair.admit(tokens(2 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    streams = [machine.stream() for _ in pair.ranks]
    for stream, arena in zip(streams, pair.arenas, strict=True):
        machine.hold(stream)
        machine.touch(stream, arena.base + PAGE, PAGE)
    pair.finish(request)
    update = pair.storage.take_update()
    assert update is not None and update.retire == (1,)
    for rank, driver, stream in zip(pair.ranks, pair.drivers, streams, strict=True):
        rank.retire((), update.epoch, [driver.fence(stream)])
    machine.hold(streams[0], False)
    until(lambda: not pair.arenas[0].is_mapped(PAGE), "the first rank is through")
    assert pair.arenas[1].is_mapped(PAGE)
    pair.storage.has_pending_update()
    assert pair.ledger.page_state(1) == "retiring"
    machine.hold(streams[1], False)
    pair.settle()
    assert pair.ledger.page_state(1) == "virtual" and created(pair) == [1, 1]
    pair.close()
    assert machine.violations() == 0
