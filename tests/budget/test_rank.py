"""A rank's memory: growth, mapping, retirement, and the way back from every failure."""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from budget_peer import environment, table_locked
from rank_rig import (
    DEVICE,
    EXTENTS,
    GRANULE,
    GROW_DONE_IN_PART,
    GROW_HEAD_AT,
    PAGE,
    PATIENCE_S,
    PLENTY,
    RING_AT,
    Rig,
    check_all_is_free,
    eventually,
    rig,
    set_word,
)

from kvcached_core.budget import BudgetError, Grant, Rank, Segment
from kvcached_core.vmm import Arena, DriverError, FaultyDriver, HostDriver, Quarantined

# --- growth ---


def test_growth_and_refusal(tmp_path: Path) -> None:
    with rig(tmp_path, capacity=4) as engine:
        member = engine.join()
        assert member.pages_held() == 1
        assert engine.grow(1, 2) == ([1, 2], [], [])
        assert engine.grow(3, 4, 5) == ([3], [4, 5], [])
        assert member.pages_held() == 4
        assert member.rank.counters()["refused"] == 2
        assert engine.segment.rank_info(0) == {
            "joined": True,
            "row": member.row,
            "device": DEVICE,
            "mapped_bytes": member.rank.mapped_bytes,
            "created_bytes": 4 * PAGE,
        }


def test_several_pages_cost_one_lease(tmp_path: Path) -> None:
    with rig(tmp_path, pages=64) as engine:
        member = engine.join()
        before = member.driver.counts()["free_bytes"]  # sampled once a lease
        assert len(engine.grow(*range(1, 64))[0]) == 63
        assert member.driver.counts()["free_bytes"] - before == 1
        assert member.pages_held() == 64


@pytest.mark.parametrize("room", range(8))
def test_a_batch_gets_all_that_there_is_room_for(tmp_path: Path, room: int) -> None:
    with rig(tmp_path, capacity=1 + room) as engine:
        member = engine.join()
        owned, refused, partial = engine.grow(*range(1, 8))
        assert (len(owned), len(refused), partial) == (room, 7 - room, [])
        assert member.pages_held() == 1 + room


def test_a_page_counts_when_all_ranks_have_it(tmp_path: Path) -> None:
    with rig(tmp_path, ranks=2) as engine:
        one, two = engine.join(), engine.join()
        assert engine.grow(1) == ([1], [], [])
        two.driver.quota(2 * PAGE)  # it has no room for more, whatever is promised to the other
        assert engine.grow(2, 3) == ([], [], [2, 3])
        assert (one.pages_held(), two.pages_held()) == (4, 2)
        engine.retire([2, 3])
        assert (one.pages_held(), two.pages_held()) == (2, 2)
        two.driver.quota(None)
        assert engine.grow(2, 3) == ([2, 3], [], [])


def test_nothing_is_reported_before_all_ranks_have_answered(tmp_path: Path) -> None:
    with rig(tmp_path, ranks=2) as engine:
        member = engine.join()
        engine.segment.request([1])
        # What is leased and what the driver holds agree only when the page is whole.
        eventually(lambda: member.info().created == 2 * PAGE, "the first rank answers")
        eventually(lambda: member.info().lease == 2 * PAGE, "it keeps what it needs")
        assert member.pages_held() == 2
        assert engine.segment.poll() == ([], [], [])
        engine.join()
        eventually(lambda: engine.segment.poll() == ([1], [], []), "both answer")


def test_a_busy_table_is_no_refusal(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        engine.join()
        with table_locked(tmp_path / "host%3Arank.record"):
            engine.segment.request([1])
            # Several times what one attempt waits for the lock, less than all attempts together.
            time.sleep(0.2)
            assert engine.segment.poll() == ([], [], [])
        eventually(lambda: engine.segment.poll() == ([1], [], []), "granted")


def test_sequence_numbers_wrap(tmp_path: Path) -> None:
    engine = Rig(tmp_path)
    start = 2**32 - 3
    set_word(engine.path, GROW_HEAD_AT, start)
    set_word(engine.path, RING_AT + 64 + GROW_DONE_IN_PART, start)
    engine.segment = Segment.open(engine.path)
    member = engine.join()
    for pages in ([1, 2], [3, 4], [5, 6]):
        assert engine.grow(*pages) == (pages, [], [])
    assert member.pages_held() == 7
    engine.close()
    assert engine.budget.rows() == []


@pytest.mark.parametrize("page", [0, 2])
def test_a_page_owned_already_is_a_loud_failure(tmp_path: Path, page: int) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(2)
        engine.segment.request([page])
        eventually(lambda: bool(engine.segment.failure()), "told")
        assert f"rank 0: page {page} was asked for" in engine.segment.failure()
        member.rank.retire([2], 1)
        assert not member.rank.drain(PATIENCE_S * 1000)


def test_no_wake_is_lost(tmp_path: Path) -> None:
    # A lost one costs a second.
    with rig(tmp_path) as engine:
        engine.join()
        for _ in range(200):
            assert engine.grow(1)[0] == [1]
            engine.retire([1])


# --- mapping ---


def test_the_background_keeps_its_pace_until_somebody_waits(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join(pace=(1e-9, 1.0))  # a piece, and then nothing
        pages = range(1, 6)
        engine.grow(1)
        eventually(lambda: member.rank.counters()["mapped_ahead"] == 1, "the burst")
        assert engine.grow(2, 3, 4, 5) == ([2, 3, 4, 5], [], [])  # a promise is not paced
        time.sleep(0.05)
        assert member.rank.counters()["mapped_ahead"] == 1
        member.rank.make_ready(list(pages))  # nor is what a step needs
        assert member.rank.counters()["mapped_in_step"] == 4
        member.rank.retire(list(pages), 1)
        time.sleep(0.05)
        assert member.rank.counters()["released"] == 0
        assert member.rank.drain(PATIENCE_S * 1000)
        assert member.rank.counters()["released"] == 5


def test_the_background_is_in_haste_while_somebody_wants_memory(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join(pace=(1e-9, 1.0))
        engine.grow(1, 2, 3)
        member.rank.make_ready([1, 2, 3])
        member.rank.retire([1, 2, 3], 1)
        other = engine.budget.join("other", 0, engine.budget.capacity())
        engine.budget.set_want(other, PAGE)
        engine.segment.ring_ranks()
        eventually(lambda: member.rank.counters()["released"] == 3, "the release")
        engine.budget.set_want(other, 0)
        engine.budget.leave(other)


def test_page_0_is_mapped_and_zero_from_start_to_end(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        assert member.is_mapped(0) and member.is_zero(0)
        member.rank.make_ready([0])
        engine.retire([0])
        assert member.is_mapped(0) and member.pages_held() == 1


def test_owned_pages_are_mapped_ahead_and_zero_also_after_reuse(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        for turn in range(1, 4):
            engine.grow(1, 2)
            eventually(lambda: member.is_mapped(1) and member.is_mapped(2), "mapped ahead")
            member.rank.make_ready([1, 2])
            assert member.is_zero(1) and member.is_zero(2)
            member.fill(1, 0xA5)
            member.fill(2, 0x5A)
            engine.retire([1, 2])
            assert not member.is_mapped(1)
            assert member.rank.mapped_bytes == PAGE
            counters = member.rank.counters()
            assert (counters["mapped_ahead"], counters["mapped_in_step"]) == (2 * turn, 0)


def test_a_slow_background_is_waited_for_or_overtaken(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.delay("map", 50_000)
        engine.grow(1, 2, 3)
        member.rank.make_ready([3, 1, 2])
        assert all(member.is_mapped(page) and member.is_zero(page) for page in (1, 2, 3))
        counters = member.rank.counters()
        assert counters["mapped_ahead"] + counters["mapped_in_step"] == 3
        assert member.rank.mapped_bytes == 4 * PAGE


def test_a_step_maps_what_the_background_could_not(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.fail_always("map")
        engine.grow(1)
        eventually(lambda: member.rank.counters()["mapped_ahead"] == 1, "tried")
        with pytest.raises(DriverError, match="injected"):
            member.rank.make_ready([1])
        member.driver.reset()
        member.rank.make_ready([1])
        assert member.is_mapped(1) and member.rank.mapped_bytes == 2 * PAGE


@pytest.mark.parametrize("page", [1, 7, -1, 8])
def test_a_page_not_owned_is_named(tmp_path: Path, page: int) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        with pytest.raises(RuntimeError, match=f"page {page}\\b"):
            member.rank.make_ready([0, page])


def test_a_page_told_to_retire_is_not_made_ready(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1)
        member.driver.delay("unmap", 100_000)
        member.rank.make_ready([1])
        member.rank.retire([1], 1)
        with pytest.raises(RuntimeError, match="page 1"):
            member.rank.make_ready([1])
        assert member.rank.drain(PATIENCE_S * 1000)
        assert member.pages_held() == 1


# --- retirement ---


def test_retired_memory_is_a_neighbours(tmp_path: Path) -> None:
    with rig(tmp_path, capacity=5) as engine:
        member = engine.join()
        engine.grow(1, 2, 3, 4)
        neighbour = engine.budget.join("neighbour", 0, engine.capacity)
        assert engine.budget.lease(neighbour, PAGE, PLENTY, 1000) == Grant.REFUSED
        event = engine.budget.event()
        engine.retire([2, 4])
        assert engine.budget.event() != event
        assert (member.driver.held_bytes(), member.rank.counters()["released"]) == (3 * PAGE, 2)
        assert engine.budget.lease(neighbour, 2 * PAGE, PLENTY, 1000) == Grant.GRANTED
        engine.budget.unlease(neighbour, 2 * PAGE)
        engine.budget.leave(neighbour)


def test_epochs_are_released_in_order(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1, 2, 3)
        member.rank.make_ready([1, 2, 3])
        member.driver.delay("unmap", 5_000)
        seen = [0]
        for epoch, pages in ((4, [1]), (5, []), (9, [2, 3])):
            member.rank.retire(pages, epoch)
        while seen[-1] != 9:
            now = engine.segment.released_epoch()
            if now != seen[-1]:
                seen.append(now)
                held = member.info().lease // PAGE
                assert held <= {4: 3, 5: 3, 9: 1}[now]
        assert seen == sorted(seen)
        with pytest.raises(RuntimeError, match="epoch 8 came to rank 0 after 9"):
            member.rank.retire([], 8)


def test_a_page_comes_and_goes_before_it_is_ever_mapped(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.delay("map", 20_000)
        for _ in range(3):
            engine.grow(1, 2, 3)
            engine.retire([2, 3])  # most likely owned and waiting to be mapped
            assert engine.grow(3)[0] == [3]  # while the old entry waits still
            member.rank.make_ready([3, 1])
            assert member.is_zero(3) and member.pages_held() == 3
            assert member.rank.mapped_bytes == 3 * PAGE
            engine.retire([1, 3])
            assert member.pages_held() == 1 and member.rank.mapped_bytes == PAGE


def test_a_page_retired_while_a_step_maps_it_is_not_forgotten(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.fail_always("map")
        engine.grow(1)
        eventually(lambda: member.rank.counters()["mapped_ahead"] == 1, "tried")
        member.driver.reset()
        member.driver.delay("map", 100_000)
        step = threading.Thread(target=member.rank.make_ready, args=([1],))
        step.start()
        eventually(lambda: member.rank.counters()["mapped_in_step"] == 1, "begun")
        engine.retire([1])
        step.join(PATIENCE_S)
        assert member.pages_held() == 1 and not member.is_mapped(1)


# --- wish and idle ---


def test_idle_rings_nobody_and_a_wish_once(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        rung = engine.doorbell()
        engine.segment.set_idle(2)
        assert engine.doorbell() == rung
        for _ in range(3):
            engine.segment.set_wish(3)
        assert engine.doorbell() == rung + 1
        eventually(lambda: member.info().want == 3 * PAGE, "want")
        eventually(lambda: member.info().idle == 2 * PAGE, "idle")
        event = engine.budget.event()
        engine.segment.set_wish(0)
        eventually(lambda: member.info().want == 0, "withdrawn")
        assert engine.budget.event() == event + 1


def test_a_steady_state_calls_no_driver_and_rings_nobody(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1, 2)
        member.rank.make_ready([1, 2])
        engine.segment.set_idle(1)
        eventually(lambda: member.info().idle == PAGE, "idle")

        def state() -> tuple[object, ...]:
            segment = engine.segment
            return (
                member.driver.counts(),
                engine.doorbell(),
                segment.progress(),
                engine.budget.event(),
            )

        eventually(lambda: member.rank.counters()["mapped_ahead"] == 2, "settled")
        before = state()
        for turn in range(100):
            member.rank.make_ready([])
            member.rank.make_ready([1, 2])
            engine.segment.request([])
            engine.segment.set_wish(0)
            engine.segment.set_idle(turn % 2)
        assert state() == before


def test_a_rank_tells_what_its_device_has_free(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1)
        member.driver.quota(5 * PAGE)
        assert engine.segment.sample(0)[0] > 5 * PAGE
        engine.segment.set_wish(9)  # while somebody wants memory, it looks again and again
        eventually(lambda: engine.segment.sample(0) == (3 * PAGE, 2 * PAGE), "a look")
        member.driver.quota(6 * PAGE)
        eventually(lambda: engine.segment.sample(0) == (4 * PAGE, 2 * PAGE), "another look")


def test_idle_reaches_the_record_at_a_ring(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.segment.set_idle(2)
        engine.segment.ring_ranks()
        eventually(lambda: member.info().idle == 2 * PAGE, "idle")


# --- failures ---


def arm(driver: FaultyDriver, kind: str, n: int) -> Callable[[], bool]:
    """Lets the n-th call from now fail; the answer says whether that call was made."""
    driver.fail_at(kind, n)
    before = driver.counts()[kind]
    return lambda: driver.counts()[kind] - before >= n


# How many calls of a kind the life below makes at least; HostDriver's memory needs no zeroing.
LIFE = [("create", 6), ("map", 6), ("set_access", 6), ("unmap", 6), ("release", 6)]


@pytest.mark.parametrize("kind,n", [(k, n) for k, most in LIFE for n in range(1, most + 1)])
def test_any_failing_call_leaves_the_accounts_right(tmp_path: Path, kind: str, n: int) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        struck = arm(member.driver, kind, n)
        owned, refused, partial = engine.grow(1, 2, 3)
        assert partial == [] and sorted(owned + refused) == [1, 2, 3]
        assert member.pages_held() == 1 + len(owned)
        for page in owned:
            try:
                member.rank.make_ready([page])
            except DriverError:
                member.rank.make_ready([page])
            assert member.is_mapped(page) and member.is_zero(page)
        engine.retire(owned)
        lost = [page for page in owned if engine.segment.is_quarantined(page)]
        assert bool(lost) == (kind in ("unmap", "release") and struck())
        assert PAGE + len(lost) * EXTENTS[0] <= member.held() <= (1 + len(lost)) * PAGE
        # Once the driver works again, what it kept goes with another try, and can be had again.
        if kind == "create" and not refused:
            engine.grow(4, 5)
        engine.retire([*lost, 4, 5])
        assert member.pages_held() == 1 and struck()
        assert engine.grow(1, 2, 3)[0] == [1, 2, 3]
        assert not engine.segment.failure()


def test_free_bytes_that_cannot_be_had_refuse(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.fail_always("free_bytes")
        assert engine.grow(1, 2) == ([], [1, 2], [])
        member.driver.reset()
        assert engine.grow(1, 2) == ([1, 2], [], [])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_a_failed_growth_leaves_is_not_offered_again(tmp_path: Path, n: int) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.fail_at("create", n)
        member.driver.fail_always("release")
        owned, refused, partial = engine.grow(1, 2)
        torn = [(n + 1) // 2] if n % 2 == 0 else []  # its first piece was made
        assert owned == [1, 2][: (n - 1) // 2]
        assert partial == torn
        assert [engine.segment.is_quarantined(page) for page in torn] == [True] * len(torn)
        assert member.held() == (1 + len(owned)) * PAGE + len(torn) * EXTENTS[0]
        assert engine.grow(*torn) == ([], [], torn)
        member.driver.reset()
        engine.retire(torn)
        assert engine.grow(*torn, *refused)[0] == torn + refused


def test_a_mapping_that_cannot_be_undone_costs_one_page(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        member.driver.fail_at("set_access", 2)
        member.driver.fail_at("unmap", 1)
        assert engine.grow(1, 2)[0] == [1, 2]
        eventually(lambda: engine.segment.is_quarantined(1), "told")
        for _ in range(2):
            with pytest.raises(Quarantined, match="page 1"):
                member.rank.make_ready([1])
        member.rank.make_ready([2])
        engine.retire([1, 2])
        assert engine.segment.is_quarantined(1)
        assert member.held() == PAGE + EXTENTS[1]  # the piece that the arena lost
        assert engine.grow(1) == ([], [], [1])
        assert not engine.segment.failure()


@pytest.mark.parametrize("kinds", [("unmap",), ("release",), ("unmap", "release")])
def test_what_the_driver_keeps_at_the_end_keeps_its_lease(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    engine = Rig(tmp_path)
    member = engine.join()
    engine.grow(1)
    member.rank.make_ready([1])
    for kind in kinds:
        member.driver.fail_always(kind)
    member.rank.close()
    member.rank.close()
    assert member.pages_held() == 2


CONSTRUCTION = ("create", "map", "set_access")


@pytest.mark.parametrize("kind,n", [(k, n) for k in CONSTRUCTION for n in (1, 2)])
def test_a_constructor_that_fails_holds_nothing(tmp_path: Path, kind: str, n: int) -> None:
    with rig(tmp_path) as engine:
        driver = FaultyDriver(HostDriver(GRANULE))
        driver.fail_at(kind, n)
        with pytest.raises(DriverError, match="injected"):
            engine.join(driver)  # gives the row back: a lease that was left would be an error
        assert driver.held_bytes() == 0
        assert engine.budget.rows() == []
        assert not engine.segment.rank_info(0)["joined"]
        engine.join(driver)


def test_a_constructor_without_room_says_so(tmp_path: Path) -> None:
    with rig(tmp_path, capacity=2) as engine:
        neighbour = engine.budget.join("neighbour", 0, engine.capacity)
        assert engine.budget.lease(neighbour, PAGE + 1, PLENTY, 1000) == Grant.GRANTED
        with pytest.raises(BudgetError, match=f"no room for the first page .{PAGE} bytes"):
            engine.join()
        engine.budget.unlease(neighbour, PAGE + 1)
        engine.budget.leave(neighbour)


def test_a_start_asks_an_idle_neighbour_and_waits_for_it(tmp_path: Path) -> None:
    with rig(tmp_path, capacity=2) as engine:
        budget = engine.budget
        neighbour = budget.join("neighbour", 1, engine.capacity)
        assert budget.lease(neighbour, 2 * PAGE, PLENTY, 1000) == Grant.GRANTED

        def give_when_asked() -> None:
            eventually(lambda: any(row.want for row in budget.rows()), "the start asks")
            budget.unlease(neighbour, 2 * PAGE)

        giver = threading.Thread(target=give_when_asked)
        giver.start()
        member = engine.join()
        giver.join()
        assert member.held() == PAGE
        assert member.info().want == 0
        budget.leave(neighbour)


def test_a_constructor_refuses_what_cannot_be(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        row = engine.budget.join("other", 0, engine.capacity)
        segment = Segment.create(str(tmp_path / "other.segment"), 8, 1)

        def make(extents: list[tuple[Arena, int]], device: str = DEVICE, number: int = 0) -> Rank:
            return Rank(segment, number, engine.budget, device, row, member.driver, extents)

        good = Arena.reserve(member.driver, 8 * GRANULE)
        for extents in ([], [(good, 0)], [(good, GRANULE), (good, GRANULE + 1)]):
            with pytest.raises(ValueError, match=r"tensors|extent"):
                make(extents)
        for device in ("", "x" * 64):
            with pytest.raises(ValueError, match="device key"):
                make([(good, GRANULE)], device)
        with pytest.raises(IndexError, match="rank 1 of 1"):
            make([(good, GRANULE)], number=1)
        make([(good, GRANULE)]).close()
        with pytest.raises(ValueError, match="joined already"):
            make([(good, GRANULE)])


# --- the end ---


def test_close_gives_everything_back_once(tmp_path: Path) -> None:
    engine = Rig(tmp_path)
    member = engine.join()
    member.driver.delay("map", 20_000)
    engine.grow(1, 2, 3)
    engine.segment.set_wish(3)
    member.rank.retire([1], 1)
    member.rank.close()
    assert member.driver.held_bytes() == 0 and engine.budget.rows() == []
    counts = member.driver.counts()
    member.rank.close()
    assert member.driver.counts() == counts
    assert engine.segment.rank_info(0)["created_bytes"] == 0
    with pytest.raises(RuntimeError, match="closed"):
        member.rank.make_ready([0])


def test_close_does_not_wait_for_a_long_growth(tmp_path: Path) -> None:
    with rig(tmp_path, pages=256, capacity=256) as engine:
        member = engine.join()
        member.driver.delay("create", 1_000_000)
        engine.segment.request(range(1, 256))
        eventually(lambda: member.info().lease == 256 * PAGE, "promised")
        member.rank.close()  # else for eight minutes
        assert engine.budget.rows() == []


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_S)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_can_neither_use_nor_end_a_rank(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1)
        member.rank.make_ready([1])

        def child() -> None:
            for call in (
                lambda: member.rank.make_ready([1]),
                lambda: member.rank.retire([1], 2),
                lambda: member.rank.drain(1),
                lambda: member.rank.counters(),
            ):
                with pytest.raises(RuntimeError, match="process"):
                    call()
            member.rank.close()
            gone = weakref.ref(member.rank)
            del member.rank
            gc.collect()
            assert gone() is None

        in_child(child)
        assert member.pages_held() == 2 and member.is_mapped(0)
        engine.retire([1])


def test_a_killed_engine_gives_its_bytes_to_a_neighbour(tmp_path: Path) -> None:
    rng = random.Random(5)
    for seed in range(6):
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_rig.py")), tmp_path, str(seed)],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_S)[0], "no answer"
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.random() / 20)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        process.stdout.close()
        check_all_is_free(tmp_path, f"neighbour-{seed}")
