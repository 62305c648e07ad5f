"""Several processes on one record: death, fork, races, waiting."""

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from budget_peer import (
    BOOT_ID_AT,
    BOOT_ID_BYTES,
    PLENTY,
    Peer,
    leases,
    patch,
    peer,
    row_bytes,
    table_locked,
    wait_for,
)
from budget_worker import CAPACITY, CHURN_DEVICE, HEADROOM

from kvcached_core.budget import Budget, BudgetError, Grant

DEVICE = "host:test"


def open_here(directory: Path) -> Budget:
    return Budget.open(str(directory), DEVICE, CAPACITY, HEADROOM)


def test_churn_under_kill(tmp_path: Path) -> None:
    record = tmp_path / "host%3Achurn.record"
    rng = random.Random(7)
    budget = Budget.open(str(tmp_path), CHURN_DEVICE, CAPACITY, HEADROOM)
    seed, highest = 0, 0
    workers: list[Peer] = []
    try:
        for _ in range(10):
            while len(workers) < 3:
                seed += 1
                workers.append(Peer("churn", str(tmp_path), str(seed)))
            for _ in range(30):
                total = sum(leases(record))
                assert total <= CAPACITY - HEADROOM
                highest = max(highest, total)
                time.sleep(0.0005)
            workers.pop(rng.randrange(len(workers))).kill()
    finally:
        for worker in workers:
            worker.kill()
    assert highest > (CAPACITY - HEADROOM) // 2, "the workers never came near the capacity"
    budget.reap()
    assert budget.rows() == []
    assert row_bytes(record) == [bytes(192)] * 64
    row = budget.join("last", 0, CAPACITY)
    assert budget.available(row, PLENTY) == CAPACITY - HEADROOM


def test_a_refused_lease_reaps_the_dead(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("here", 0, CAPACITY)
    with peer(tmp_path, DEVICE) as other:
        assert other.do(f"budget.join('there', 0, {CAPACITY})") == "1"
        assert other.do(f"budget.lease(1, 900, {PLENTY}, 1000)").startswith("<Grant.GRANTED")
        assert budget.lease(row, 500, PLENTY, 1000) == Grant.REFUSED
    seen = budget.event()
    assert budget.lease(row, 500, PLENTY, 1000) == Grant.GRANTED
    assert budget.event() != seen
    assert [info.instance for info in budget.rows()] == ["here"]


def test_reap_spares_the_living(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    with peer(tmp_path, DEVICE) as one, peer(tmp_path, DEVICE) as two:
        one.do(f"budget.join('one', 0, {CAPACITY}, 5)")
        two.do(f"budget.join('two', 3, {CAPACITY}, 6, 7, 8)")
        assert budget.reap() == 0
        one.kill()
        assert [info.instance for info in budget.rows()] == ["two"]
        assert (budget.reap(), budget.reap()) == (1, 0)
        (info,) = budget.rows()
        assert (info.instance, info.rank, info.pid) == ("two", 3, two.process.pid)
        assert (info.limit, info.floor, info.claim, info.weight) == (CAPACITY, 6, 7, 8)
        assert info.alive and info.start_time > 0
    assert budget.reap() == 1


def test_names_of_the_living_conflict(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    with peer(tmp_path, DEVICE) as other:
        other.do(f"budget.join('same', 0, {CAPACITY})")
        with pytest.raises(BudgetError, match=rf"'same' rank 0: lives.*{other.process.pid}"):
            budget.join("same", 0, CAPACITY)
        budget.join("same", 1, CAPACITY)
    budget.join("same", 0, CAPACITY)
    with pytest.raises(BudgetError, match="lives already"):
        open_here(tmp_path).join("same", 0, CAPACITY)


def test_objects_of_one_process_do_not_drop_each_others_locks(tmp_path: Path) -> None:
    one, two = open_here(tmp_path), open_here(tmp_path)
    assert (one.join("one", 0, CAPACITY), two.join("two", 0, CAPACITY)) == (0, 1)
    with pytest.raises(BudgetError, match="row 0 was not joined through this object"):
        two.lease(0, 1, PLENTY, 1000)
    del two
    open_here(tmp_path)
    with peer(tmp_path, DEVICE) as other:
        assert other.do("(budget.reap(), [r.instance for r in budget.rows()])") == "(0, ['one'])"


def test_an_object_that_dies_keeps_a_row_with_a_lease(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("leaky", 0, CAPACITY)
    assert budget.lease(row, 10, PLENTY, 1000) == Grant.GRANTED
    with pytest.raises(BudgetError, match=r"still leases 10 bytes"):
        budget.leave(row)
    del budget
    with peer(tmp_path, DEVICE) as other:
        assert other.do("(budget.reap(), [r.lease for r in budget.rows()])") == "(0, [10])"


def in_child(act: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(act())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_does_nothing(tmp_path: Path) -> None:
    holder = [open_here(tmp_path)]
    row = holder[0].join("parent", 0, CAPACITY)
    before = row_bytes(tmp_path / "host%3Atest.record")

    def act() -> int:
        holder[0].leave(row)
        refused = 0
        for call in (
            lambda: holder[0].lease(row, 1, PLENTY, 1000),
            lambda: holder[0].set_want(row, 1),
            lambda: holder[0].join("child", 0, CAPACITY),
            lambda: holder[0].reap(),
        ):
            try:
                call()
            except BudgetError as error:
                refused += "used in its child" in str(error)
        seen = len(holder[0].rows())
        holder.clear()
        return 10 * refused + seen

    assert in_child(act) == 41
    assert row_bytes(tmp_path / "host%3Atest.record") == before
    with peer(tmp_path, DEVICE) as other:
        assert other.do("(budget.reap(), len(budget.rows()))") == "(0, 1)"


def test_a_forked_child_may_join_by_itself(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    budget.join("parent", 0, CAPACITY)

    def act() -> int:
        own = open_here(tmp_path)
        row = own.join("child", 0, CAPACITY)
        assert own.lease(row, 10, PLENTY, 1000) == Grant.GRANTED
        return 10 * row + len(own.rows())

    assert in_child(act) == 12
    assert len(budget.rows()) == 1
    assert budget.reap() == 1


def test_a_living_child_does_not_keep_its_parents_row(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    with peer(tmp_path, DEVICE) as other:
        other.do(f"budget.join('parent', 0, {CAPACITY})")
        child = int(other.do("fork_sleeper()"))
    try:
        assert budget.rows() == []
        assert budget.reap() == 1
    finally:
        os.kill(child, 9)


def test_an_orphan_sees_that_its_parent_is_dead(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    with peer(tmp_path, DEVICE, CAPACITY) as other:
        other.do(f"budget.join('parent', 0, {CAPACITY})")
        other.do(f"fork_reaper({str(tmp_path)!r}, {DEVICE!r}, {str(answer)!r})")
    assert wait_for(answer) == "0 alive, 1 reaped"


def test_a_child_has_no_copy_of_the_tables_lock(tmp_path: Path) -> None:
    with peer(tmp_path, DEVICE, CAPACITY) as other:
        other.do(f"budget.join('parent', 0, {CAPACITY})")
        counts = other.do("lock_descriptors_seen_by_children(budget, 0, 40)")
    assert counts == str([1] * 40)  # the one that the object keeps; it is never locked


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    holders, most, granted = 0, 0, 0
    guard = threading.Lock()

    def work(row: int) -> None:
        nonlocal holders, most, granted
        for _ in range(300):
            if budget.lease(row, 600, PLENTY, 1000) != Grant.GRANTED:
                continue
            with guard:
                holders, granted = holders + 1, granted + 1
                most = max(most, holders)
            with guard:
                holders -= 1
            budget.unlease(row, 600)

    rows = [budget.join(f"t{n}", 0, CAPACITY) for n in range(4)]
    threads = [threading.Thread(target=work, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and granted > 0
    assert [info.lease for info in budget.rows()] == [0] * 4


@pytest.mark.parametrize("stale", [False, True], ids=["none yet", "stale boot id"])
def test_starters_at_the_same_instant_share_one_record(tmp_path: Path, stale: bool) -> None:
    with peer(tmp_path) as one, peer(tmp_path) as two:
        for turn in range(20):
            device = f"host:race{turn}"
            if stale:
                Budget.open(str(tmp_path), device, 500, 0)
                record = tmp_path / f"host%3Arace{turn}.record"
                patch(record, BOOT_ID_AT, b"x" * (BOOT_ID_BYTES - 1))
            when = time.monotonic() + 0.01
            for other, name in ((one, "one"), (two, "two")):
                other.send(f"open_at({when}, {str(tmp_path)!r}, {device!r}, 1000, {name!r})")
            assert {one.reply(), two.reply()} == {"0", "1"}
            for other in (one, two):
                assert other.do("(budget.detached(), len(budget.rows()))") == "(False, 2)"
    assert list(tmp_path.glob(".*")) == []


def test_a_locked_table_is_a_miss(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("here", 0, CAPACITY)
    with table_locked(tmp_path / "host%3Atest.record"):
        assert budget.lease(row, 1, PLENTY, 0) == Grant.MISSED
        assert budget.lease(row, 1, PLENTY, 20) == Grant.MISSED
        assert budget.set_terms(row, CAPACITY, 1, 0, 20) == Grant.MISSED
        assert budget.reap() == 0
        assert budget.available(row, PLENTY) == CAPACITY - HEADROOM
        budget.set_want(row, 1)
    assert [(info.lease, info.floor) for info in budget.rows()] == [(0, 0)]
    assert budget.lease(row, 1, PLENTY, 1000) == Grant.GRANTED


def test_a_reader_of_the_table_excludes_writers(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("here", 0, CAPACITY)
    with table_locked(tmp_path / "host%3Atest.record", fcntl.LOCK_SH):
        assert budget.lease(row, 1, PLENTY, 20) == Grant.MISSED


def test_bytes_created_while_a_lease_waits_are_counted(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row, other = (budget.join(name, 0, CAPACITY) for name in ("waits", "creates"))
    assert budget.lease(other, 100, PLENTY, 1000) == Grant.GRANTED
    grants = []
    waiting = threading.Thread(
        target=lambda: grants.append(budget.lease(row, 200, 300, 30_000)),
    )
    with table_locked(tmp_path / "host%3Atest.record"):
        waiting.start()
        time.sleep(0.2)  # so that it waits for the lock
        budget.mark_created(other, 100)
    waiting.join()
    # 300 were free on the device before: 100 of them are taken now, 40 are headroom.
    assert grants == [Grant.REFUSED]
    assert budget.lease(row, 160, 300, 1000, 0) == Grant.GRANTED


def test_a_lock_holder_that_dies_frees_the_table(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("here", 0, CAPACITY)
    record = str(tmp_path / "host%3Atest.record")
    with peer(tmp_path, DEVICE) as other:
        assert other.do(f"hold_table({record!r})") == "None"
        assert budget.lease(row, 1, PLENTY, 20) == Grant.MISSED
    assert budget.lease(row, 1, PLENTY, 1000) == Grant.GRANTED


@pytest.mark.parametrize(
    "act",
    ["set_want(row, 5)", "unlease(row, 5)", "mark_released(row, 5)", "leave(idle)",
     "set_terms(row, 900, 0, 0, 1000)"],
)  # fmt: skip
def test_a_waiter_is_woken_from_another_process(tmp_path: Path, act: str) -> None:
    budget = open_here(tmp_path)
    row, idle = budget.join("a", 0, CAPACITY), budget.join("b", 0, 9)
    assert budget.lease(row, 10, PLENTY, 1000) == Grant.GRANTED
    budget.mark_created(row, 5)
    with peer(tmp_path, DEVICE) as other:
        seen = budget.event()
        assert other.do(f"budget.wait_event({seen}, 10)") == str(seen)
        other.send(f"budget.wait_event({seen}, 10**9)")
        time.sleep(0.1)  # so that it really sleeps in the kernel
        eval(f"budget.{act}", {"budget": budget, "row": row, "idle": idle})
        assert int(other.reply()) > seen


def test_more_idle_memory_is_an_event_only_while_somebody_wants_some(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row, other = budget.join("a", 0, CAPACITY), budget.join("b", 0, CAPACITY)
    calm = budget.event()
    budget.set_idle(row, 10)
    assert budget.event() == calm
    budget.set_want(other, 5)
    wanted = budget.event()
    budget.set_idle(row, 10)
    budget.set_idle(row, 4)
    assert budget.event() == wanted
    budget.set_idle(row, 8)
    assert budget.event() != wanted


def test_who_could_give_sleeps_until_somebody_wants(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row, other = budget.join("a", 0, CAPACITY), budget.join("b", 0, CAPACITY)
    seen = budget.wait_wanted(row, 0, 0)
    assert budget.lease(other, 10, PLENTY, 1000) == Grant.GRANTED
    budget.mark_created(other, 5)
    budget.mark_released(other, 5)
    budget.unlease(other, 5)
    budget.set_idle(other, 3)
    assert budget.wait_wanted(row, seen, 0) == seen
    budget.set_want(row, 5)  # its own want is nobody else's
    with peer(tmp_path, DEVICE) as giver:
        giver.send(f"budget.wait_wanted({row}, {seen}, 10**9)")
        time.sleep(0.1)
        budget.set_want(other, 5)
        assert int(giver.reply()) > seen
    now = budget.wait_wanted(row, seen, 0)
    budget.set_idle(row, 7)  # more to give, and somebody waits for it
    assert budget.wait_wanted(row, now, 10**9) > now


def test_a_waiter_is_woken_by_a_reap(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    with ExitStack() as stack:
        waiter = stack.enter_context(peer(tmp_path, DEVICE))
        with peer(tmp_path, DEVICE) as dying:
            dying.do("budget.join('dying', 0, 10)")
        seen = budget.event()
        waiter.send(f"budget.wait_event({seen}, 10**9)")
        time.sleep(0.1)
        assert budget.reap() == 1
        assert int(waiter.reply()) > seen


def test_nothing_is_reclaimed_for_the_dead(tmp_path: Path) -> None:
    budget = open_here(tmp_path)
    row = budget.join("holder", 0, CAPACITY)
    assert budget.lease(row, CAPACITY - HEADROOM, PLENTY, 1000) == Grant.GRANTED
    budget.set_idle(row, 500)
    with peer(tmp_path, DEVICE) as other:
        other.do(f"budget.set_want(budget.join('wants', 0, {CAPACITY}), 100)")
        assert budget.reclaim_target(row) == 100
    assert budget.reclaim_target(row) == 0
