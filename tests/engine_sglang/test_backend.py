"""The backend stepped by hand, beside members of its budget that are no engines (rig.py)."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcached_core.budget import Budget, Grant

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.usefixtures("sglang_variables"),
    pytest.mark.conformance("interface"),
]

PAGE = 64 << 10
PER_PAGE = 64
PLENTY = 2**62  # free bytes of the device: not what limits here

Make = Callable[..., Any]


class Member:
    """Needs memory in the rig's budget."""

    def __init__(self, directory: Path, floor: int = 0) -> None:
        self._budget = Budget.open(str(directory), "host:rig", 0, 0)
        self.row = self._budget.join("member", 0, 32 * PAGE, floor, 0, 100)

    def want(self, pages: int) -> None:
        self._budget.set_want(self.row, pages * PAGE)

    def lease(self, pages: int) -> bool:
        return self._budget.lease(self.row, pages * PAGE, PLENTY, 1000) == Grant.GRANTED

    def give(self, pages: int) -> None:
        self._budget.unlease(self.row, pages * PAGE)
        self._budget.set_want(self.row, 0)

    def rows(self) -> list[Any]:
        return [row for row in self._budget.rows() if row.instance != "member"]

    def leave(self) -> None:
        self._budget.leave(self.row)


def until(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold; threads of the backend may have to do something first."""
    end = time.monotonic() + 10
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def request(prompt: int, answer: int) -> Any:
    from engine_sglang.rig import request

    return request(prompt, answer)


def test_it_starts_with_padding_s_page(make: Make) -> None:
    rig = make()
    assert rig.mapped() == PAGE
    assert rig.available() == PER_PAGE - 1
    assert rig.allocator.unbacked_size() == 2047 - (PER_PAGE - 1)
    assert rig.backend.max_request_tokens(199) == 199
    rig.pool.k_buffer[0][0] = 1.0


def test_a_waiting_request_finds_memory_for_all_it_may_write(make: Make) -> None:
    rig = make()
    rig.step([request(150, 40)])
    assert rig.available() >= 190
    taken = rig.take(150)
    rig.write(taken)
    assert len(set(taken.tolist())) == 150


def test_what_is_freed_in_any_way_gives_its_memory_back(make: Make) -> None:
    """Releases differ in how they free. All of them put what is free into the list."""
    import torch

    rig = make(reserve_pages=0)
    for _ in range(3):
        rig.step([request(190, 1)])
        taken = rig.take(190)
        assert rig.mapped() > PAGE
        rig.allocator.free_pages = torch.cat((rig.allocator.free_pages, taken))
        rig.rest()
        assert rig.mapped() == PAGE


def test_a_request_that_was_not_admitted_is_tried_again_when_there_is_more(make: Make) -> None:
    rig = make()
    waiting = [request(150, 40)]
    rig.running.batch_is_full = True
    rig.running.reqs = [request(3, 3)]
    rig.step(waiting)
    assert not rig.running.batch_is_full

    def stays_full() -> bool:  # once the reserve is there too, nothing changes
        rig.running.batch_is_full = True
        rig.step(waiting)
        return bool(rig.running.batch_is_full)

    assert until(stays_full)


def test_memory_that_comes_into_use_again_is_zero(make: Make) -> None:
    rig = make(reserve_pages=0)
    rig.step([request(190, 1)])
    taken = rig.take(190)
    rig.write(taken)
    rig.allocator.free(taken)
    rig.running.reqs = []
    rig.rest()
    assert rig.mapped() == PAGE
    rig.step([request(190, 1)])
    taken = rig.take(190)
    fresh = taken[taken >= PER_PAGE]
    assert len(fresh) >= 190 - PER_PAGE
    assert not rig.pool.k_buffer[1][fresh].any() and not rig.pool.v_buffer[0][fresh].any()


def test_a_page_with_a_slot_in_use_stays(make: Make) -> None:
    rig = make(reserve_pages=0)
    rig.step([request(190, 1)])
    taken = rig.take(190)
    kept = taken[taken // PER_PAGE == 2][:1]
    rig.allocator.free(taken[taken != kept])
    rig.rest()
    assert rig.mapped() == 2 * PAGE
    rig.write(kept)


def test_prefixes_stay_until_somebody_wants_memory(make: Make, tmp_path: Path) -> None:
    rig = make()
    rig.step([request(400, 1000)])
    for _ in range(4):
        rig.cache(rig.take(150))
    rig.rest()
    held = rig.mapped()
    assert held >= 600 * PAGE // PER_PAGE
    member = Member(tmp_path / "budget")
    assert not member.lease(28)
    member.want(28)
    end = time.monotonic() + 10
    while not member.lease(28) and time.monotonic() < end:
        rig.step()
        time.sleep(0.001)
    assert rig.mapped() <= 4 * PAGE  # which are its floor
    assert rig.tree.evictable_size() < 600
    member.give(28)
    member.leave()


def test_a_neighbour_s_want_wakes_a_scheduler_that_sleeps(make: Make, tmp_path: Path) -> None:
    rig = make()
    descriptor = rig.backend.wakeup_fd()

    def is_quiet() -> bool:
        rig.step()
        return not select.select([descriptor], [], [], 0.05)[0]

    rig.step([request(400, 1000)])
    rig.cache(rig.take(600))
    assert until(is_quiet)
    member = Member(tmp_path / "budget")
    assert not member.lease(28)
    member.want(28)
    assert select.select([descriptor], [], [], 10)[0] == [descriptor]
    member.want(0)
    assert until(is_quiet)
    member.leave()


def test_no_neighbour_gets_the_floor(make: Make, tmp_path: Path) -> None:
    rig = make(floor=8 * PAGE)
    rig.step([request(400, 100)])
    rig.cache(rig.take(450))
    rig.rest()
    member = Member(tmp_path / "budget")
    member.want(32)
    for _ in range(100):
        rig.step()
        time.sleep(0.001)
    assert rig.mapped() == 8 * PAGE
    assert not member.lease(25)
    assert member.lease(24)
    member.give(24)
    member.leave()


def test_what_cannot_be_had_is_not_promised(make: Make, tmp_path: Path) -> None:
    rig = make(reserve_wait_ms=1, reclaim_wait_ms=1)
    member = Member(tmp_path / "budget")
    assert member.lease(28)
    rig.step([request(190, 1000)], steps=3)
    assert rig.available() == 4 * PER_PAGE - 1
    assert rig.allocator.alloc(4 * PER_PAGE) is None
    (row,) = member.rows()
    assert row.want > 0
    rig.step()
    member.give(28)
    rig.step([request(190, 1000)], steps=3)
    assert rig.available() >= 1190
    member.leave()


def test_it_sleeps_and_wakes_when_its_floor_is_there(make: Make, tmp_path: Path) -> None:
    rig = make()
    rig.step([request(190, 100)])
    rig.allocator.free(rig.take(190))
    rig.allocator.clear()
    rig.backend.release()
    assert rig.mapped() == PAGE and rig.available() == 0
    rig.step([request(190, 100)])
    assert rig.mapped() == PAGE and rig.available() == 0
    member = Member(tmp_path / "budget", floor=31 * PAGE)
    assert [row.floor for row in member.rows()] == [0]
    rig.backend.resume()
    rig.step([request(190, 100)])
    assert rig.available() == 0 and rig.allocator.unbacked_size() == 2047
    member.leave()
    end = time.monotonic() + 5
    while not rig.available() and time.monotonic() < end:
        rig.step([request(190, 100)])
    assert rig.available() >= 290
    rig.write(rig.take(290))


def test_an_idle_step_is_a_look_at_a_flag(make: Make) -> None:
    rig = make()
    rig.rest()
    before = rig.stepper._step
    began = time.perf_counter()
    rig.step(steps=10_000)
    seconds = time.perf_counter() - began
    assert rig.stepper._step <= before + 2 + seconds / 0.2
    assert seconds < 1


def test_it_leaves_nothing_when_it_ends(make: Make, tmp_path: Path) -> None:
    rig = make()
    rig.step([request(190, 100)])
    member = Member(tmp_path / "budget")
    assert len(member.rows()) == 1
    rig.close()
    rig.close()
    assert member.rows() == []
    assert list((tmp_path / "budget" / "instances").iterdir()) == []
    member.leave()


def test_a_second_engine_whose_floor_does_not_fit_is_refused(make: Make) -> None:
    make(name="one", floor=20 * PAGE)
    with pytest.raises(RuntimeError, match="floor"):
        make(name="two", floor=20 * PAGE)
