"""A rank over a device: work still queued when pages are retired, and a device that is lost."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from rank_rig import EXTENTS, GRANULE, PAGE, PATIENCE_S, Member, Rig, eventually, rig

from kvcached_core.budget import Budget
from kvcached_core.vmm import DeviceLost, DriverError, FaultyDriver, HostDriver
from lookalike import VENDORS, Machine

pytestmark = pytest.mark.conformance("look-alike")


@pytest.fixture(params=VENDORS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param, GRANULE)


def device(machine: Machine) -> FaultyDriver:
    return FaultyDriver(machine.driver())


def busy_stream(machine: Machine, member: Member, *pages: int) -> int:
    """A stream with work on these pages that waits until the test lets it go."""
    stream = machine.stream()
    machine.hold(stream)
    for page in pages:
        for address, size in member.ranges(page):
            machine.touch(stream, address, size)
    return stream


def looks(machine: Machine) -> int:
    return machine.counts().get(machine.calls["query"], 0)


def wait_for_looks(machine: Machine) -> None:
    """The rank has looked at a fence, and not just begun to."""
    before = looks(machine)
    eventually(lambda: looks(machine) >= before + 3, "a look at the fence")


def test_a_page_is_not_unmapped_before_its_fence_has_passed(
    tmp_path: Path, machine: Machine
) -> None:
    with rig(tmp_path) as engine:
        member = engine.join(device(machine))
        engine.grow(1, 2)
        member.rank.make_ready([1, 2])
        stream = busy_stream(machine, member, 1, 2)
        member.rank.retire([1, 2], 1, [member.driver.fence(), member.driver.fence(stream)])
        wait_for_looks(machine)
        assert member.is_mapped(1) and member.is_mapped(2)
        assert engine.segment.released_epoch() == 0 and not member.rank.drain(0)
        engine.grow(3)  # goes on meanwhile
        member.rank.make_ready([3])
        assert member.is_zero(3)
        machine.hold(stream, False)
        assert member.rank.drain(PATIENCE_S * 1000)
        assert engine.segment.released_epoch() == 1 and not member.is_mapped(1)
        assert machine.violations() == 0
        member.driver.check_alive()


def test_the_machine_tells_who_does_not_wait(tmp_path: Path, machine: Machine) -> None:
    """Otherwise the test above shows little."""
    engine = Rig(tmp_path)
    member = engine.join(device(machine))
    engine.grow(1)
    member.rank.make_ready([1])
    stream = busy_stream(machine, member, 1)
    member.rank.retire([1], 1, [])
    assert member.rank.drain(PATIENCE_S * 1000)
    assert machine.violations() == len(EXTENTS)
    machine.hold(stream, False)
    with pytest.raises(DeviceLost, match="700"):
        member.driver.free_bytes()
    member.rank.close()


def test_retirements_wait_in_their_order(tmp_path: Path, machine: Machine) -> None:
    with rig(tmp_path) as engine:
        member = engine.join(device(machine))
        engine.grow(1, 2, 3)
        member.rank.make_ready([1, 2, 3])
        streams = [busy_stream(machine, member, page) for page in (1, 3)]
        member.rank.retire([1], 1, [member.driver.fence(streams[0])])
        member.rank.retire([2], 2)
        member.rank.retire([3], 3, [member.driver.fence(streams[1])])
        wait_for_looks(machine)
        assert engine.segment.released_epoch() == 0 and member.is_mapped(2)
        machine.hold(streams[0], False)
        eventually(lambda: engine.segment.released_epoch() == 2, "the first two")
        wait_for_looks(machine)
        assert member.is_mapped(3)
        machine.hold(streams[1], False)
        assert member.rank.drain(PATIENCE_S * 1000)
        assert machine.violations() == 0


def test_a_fence_that_does_not_pass_ends_the_rank_and_unmaps_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    engine = Rig(tmp_path)
    member = engine.join(device(machine), fence_deadline_ms=30)
    engine.grow(1)
    member.rank.make_ready([1])
    stream = busy_stream(machine, member, 1)
    used = machine.used()
    member.rank.retire([1], 7, [member.driver.fence(stream)])
    eventually(lambda: engine.segment.failure() != "", "the failure")
    for word in ("rank 0", "30 ms", f"stream 0x{stream:x}", "update 7", "end it"):
        assert word in engine.segment.failure()
    assert member.is_mapped(1)
    with pytest.raises(RuntimeError, match=f"stream 0x{stream:x}"):
        member.rank.close()
    member.rank.close()
    ranges = member.ranges(1)
    del member.rank, member.arenas, member
    engine.members.clear()
    gc.collect()
    assert (machine.violations(), machine.used()) == (0, used)
    assert len(engine.budget.rows()) == 1  # the memory is still leased
    machine.hold(stream, False)
    machine.touch(stream, *ranges[0])
    assert machine.driver().free_bytes() > 0  # else the device would be lost


def test_close_waits_for_what_is_queued(tmp_path: Path, machine: Machine) -> None:
    engine = Rig(tmp_path)
    member = engine.join(device(machine))
    engine.grow(1)
    member.rank.make_ready([1])
    stream = busy_stream(machine, member, 1)
    member.rank.retire([1], 1, [member.driver.fence(stream)])
    closing = threading.Thread(target=member.rank.close)
    closing.start()
    wait_for_looks(machine)
    assert closing.is_alive() and member.is_mapped(1)
    machine.hold(stream, False)
    closing.join(PATIENCE_S)
    assert machine.violations() == 0 and engine.budget.rows() == []
    assert member.driver.held_bytes() == 0 and engine.segment.failure() == ""


def test_a_fence_that_is_none_is_refused(tmp_path: Path, machine: Machine) -> None:
    with rig(tmp_path) as engine:
        member = engine.join(device(machine))
        with pytest.raises((TypeError, ValueError)):
            member.rank.retire([], 1, [None])  # type: ignore[list-item]
        member.rank.retire([], 1, [member.driver.fence()])
        assert member.rank.drain(PATIENCE_S * 1000)


def test_a_devices_key_names_its_record(tmp_path: Path, machine: Machine) -> None:
    key = machine.driver().device_key()
    budget = Budget.open(str(tmp_path / "budget"), key, PAGE, 0)
    assert budget.capacity() == PAGE
    assert len(key) < 64  # what a rank publishes of it


def test_what_a_page_costs_in_calls_of_the_library(tmp_path: Path, machine: Machine) -> None:
    """One each, and no look at the thread: the rank's own makes them. Steps make no events."""
    with rig(tmp_path, extents=(GRANULE,)) as engine:
        member = engine.join(device(machine))
        before: dict[str, int] = {}
        for turn in range(1, 7):
            if turn == 2:  # its thread is at work, and has an event at hand
                before = machine.counts()
            engine.grow(1)
            eventually(lambda turn=turn: member.rank.counters()["mapped_ahead"] == turn, "map")
            engine.retire([1])
        once = ("free_bytes", "create", "map", "set_access", "zero", "record", "unmap", "release")
        calls = machine.calls_since(before)
        assert calls.pop(machine.calls["query"]) >= 5
        assert calls == {machine.calls[name]: 5 for name in once}
        for epoch in range(7, 20):
            member.rank.retire([], epoch, [member.driver.fence()])
            assert member.rank.drain(PATIENCE_S * 1000)
        assert machine.calls_since(before).get(machine.calls["create_event"], 0) <= 1


def test_pages_asked_for_together_wait_once_for_their_zeros(
    tmp_path: Path, machine: Machine
) -> None:
    with rig(tmp_path, extents=(GRANULE,)) as engine:
        member = engine.join(device(machine))
        before = machine.counts()
        pages = range(1, 8)
        engine.grow(*pages)
        member.rank.make_ready(list(pages))
        calls = machine.calls_since(before)
        assert calls[machine.calls["zero"]] == len(pages)
        assert calls[machine.calls["record"]] <= 2  # the background's and the step's
        assert all(member.is_zero(page) for page in pages)


# --- a lost device ---


@pytest.mark.parametrize("kind", ["free_bytes", "create", "map", "set_access", "unmap", "release"])
def test_a_lost_device_ends_the_rank(tmp_path: Path, kind: str) -> None:
    engine = Rig(tmp_path)
    member = engine.join(FaultyDriver(HostDriver(GRANULE)))
    engine.grow(1)
    member.rank.make_ready([1])
    member.driver.fail_at(kind, 1, "lost")
    engine.segment.request([2])
    member.rank.retire([1], 1)
    eventually(lambda: engine.segment.failure() != "", "the failure")
    assert "lost" in engine.segment.failure()
    member.rank.close()
    assert len(engine.budget.rows()) == 1  # what it holds is not for others to take


def test_a_step_meets_a_lost_device(tmp_path: Path) -> None:
    engine = Rig(tmp_path)
    member = engine.join(FaultyDriver(HostDriver(GRANULE)))
    member.driver.fail_always("map")
    engine.grow(1)
    eventually(lambda: member.rank.counters()["mapped_ahead"] == 1, "a try in vain")
    member.driver.fail_at("map", 0)
    member.driver.fail_at("set_access", 1, "lost")
    with pytest.raises(DriverError, match="set_access"):
        member.rank.make_ready([1])
    engine.segment.request([2])
    eventually(lambda: "lost" in engine.segment.failure(), "the failure")
    member.rank.close()
