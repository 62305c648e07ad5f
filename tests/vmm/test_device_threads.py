"""How a device driver lives beside its process's other threads, children and streams."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from kvcached_core.vmm import (
    DeviceDriver,
    DriverError,
    InvalidArgument,
)
from lookalike import GLOBAL, RELAXED, Machine

from .device_life import G, check_costs, in_a_thread, life_of_a_page, live
from .subject import DEADLINE, Subject

pytestmark = pytest.mark.conformance("look-alike")

# --- threads, captures, forks ---


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_is_left_as_it_was_found(
    machine: Machine, driver: DeviceDriver, device: int, fails: bool
) -> None:
    def work() -> None:
        machine.make_current(device)
        before = machine.current()
        machine.exchange_mode(1)
        for step in life_of_a_page(driver):
            if fails and step.calls:
                machine.fail(machine.calls[step.calls[0]], 999)
                with pytest.raises(DriverError):
                    step.call()
            step.call()
            assert machine.current() == before
        assert machine.exchange_mode(1) == 1

    in_a_thread(work)


def test_a_thread_without_a_context_stays_without(machine: Machine, driver: DeviceDriver) -> None:
    def work() -> None:
        before = machine.current()
        live(driver)
        assert machine.current() == before

    in_a_thread(work)


def test_an_adopted_thread_keeps_its_state_beside_other_drivers(
    machine: Machine, driver: DeviceDriver
) -> None:
    other = machine.driver(0)

    def work() -> None:
        driver.adopt_thread()
        adopted = machine.current()
        live(other)
        assert machine.current() == adopted
        check_costs(machine, driver)
        assert machine.exchange_mode(RELAXED) == RELAXED

    in_a_thread(work)


@pytest.mark.parametrize("adopts", [False, True])
def test_a_capture_in_another_thread_is_not_spoiled(
    machine: Machine, driver: DeviceDriver, adopts: bool
) -> None:
    def work() -> None:
        if adopts:
            driver.adopt_thread()
        live(driver)
        assert driver.fence().passed()

    machine.make_current(1)
    machine.begin_capture(GLOBAL)
    in_a_thread(work)
    live(driver)  # nor by the thread that captures
    assert machine.end_capture() == 0


def test_a_capture_is_spoiled_by_who_does_not_care(machine: Machine, driver: DeviceDriver) -> None:
    """Otherwise the test above shows nothing."""
    machine.make_current(1)
    machine.begin_capture(GLOBAL)

    def careless() -> None:
        machine.make_current(1)
        status = getattr(machine.library, machine.calls["query"])(None)
        assert status == 900

    in_a_thread(careless)
    assert machine.end_capture() == 901


@pytest.mark.parametrize("kind", ["map", "set_access", "unmap"])
def test_a_call_under_way_keeps_others_off_its_range_and_no_further(
    machine: Machine, driver: DeviceDriver, kind: str
) -> None:
    base = driver.reserve(4 * G)
    handles = [driver.create(G) for _ in range(2)]
    calls: dict[str, Callable[[], object]] = {
        "map": lambda: driver.map(base, handles[0]),
        "set_access": lambda: driver.set_access(base, G),
        "unmap": lambda: driver.unmap(base, G),
    }
    order = list(calls)
    for before in order[: order.index(kind)]:
        calls[before]()
    thread = threading.Thread(target=calls[kind])
    with machine.blocked(machine.calls[kind]):
        thread.start()
        while machine.waiting() == 0:
            assert thread.is_alive()
        for other in (*calls.values(), lambda: driver.zero(base, G)):
            with pytest.raises(InvalidArgument):
                other()
        driver.release(driver.create(G))  # beside it, work goes on
        driver.fence()
    thread.join(DEADLINE)
    for after in order[order.index(kind) + 1 :]:
        calls[after]()
    assert driver.held_bytes() == 2 * G


def test_a_forked_child_has_no_effect(machine: Machine, driver: DeviceDriver) -> None:
    base = driver.reserve(4 * G)
    handle = driver.create(G)
    driver.map(base, handle)
    loose = driver.create(G)
    fence = driver.fence()
    calls: list[Callable[[], object]] = [
        lambda: driver.reserve(G),
        lambda: driver.unreserve(base, 4 * G),
        lambda: driver.create(G),
        lambda: driver.release(loose),
        lambda: driver.map(base + G, loose),
        lambda: driver.set_access(base, G),
        lambda: driver.unmap(base, G),
        lambda: driver.zero(base, G),
        driver.fence,
        fence.passed,
        driver.adopt_thread,
        driver.free_bytes,
        driver.held_bytes,
    ]
    before = machine.counts()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except InvalidArgument as error:
                refused += str(os.getpid()) in str(error)
        calls.clear()
        del driver, fence, call
        gc.collect()
        made_none = machine.calls_since(before) == {}
        os._exit(0 if made_none and refused == 13 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    driver.unmap(base, G)
    driver.release(handle)
    driver.release(loose)
    assert machine.used() == 0 and fence.passed()


# --- work on streams ---


@pytest.mark.parametrize("call", ["finish", "unmap"])
def test_who_needs_the_zeros_waits_for_them(
    machine: Machine, driver: DeviceDriver, call: str
) -> None:
    base = driver.reserve(2 * G)
    subject = Subject(driver)
    subject.filled(base, 1, 0xEE)
    subject.filled(base + G, 1, 0xEE)
    ours = machine.last_stream()
    machine.hold(ours)
    queries = machine.counts().get(machine.calls["query"], 0)
    driver.zero(base, G)
    assert machine.counts().get(machine.calls["query"], 0) == queries
    ended = threading.Event()

    def need() -> None:
        driver.finish() if call == "finish" else driver.unmap(base + G, G)
        ended.set()

    thread = threading.Thread(target=need)
    thread.start()
    while machine.counts().get(machine.calls["query"], 0) < queries + 3:
        assert not ended.wait(0.001)
    assert subject.is_filled(base, G, 0xEE) and not ended.is_set()
    machine.hold(ours, False)
    thread.join(DEADLINE)
    assert ended.is_set() and subject.is_filled(base, G, 0)


def test_zeroing_waits_for_no_other_stream(machine: Machine, driver: DeviceDriver) -> None:
    base = driver.reserve(G)
    Subject(driver).filled(base, 1, 0xEE)
    streams = [0, machine.stream(blocking=True)]
    for stream in streams:
        machine.hold(stream)
        machine.touch(stream, base, G)
    driver.zero(base, G)
    driver.finish()
    for stream in streams:
        machine.hold(stream, False)


def test_a_fence_is_behind_what_was_queued_before_it(
    machine: Machine, driver: DeviceDriver
) -> None:
    base = driver.reserve(G)
    Subject(driver).filled(base, 1, 1)
    stream, other = machine.stream(), machine.stream()
    early = driver.fence(stream)
    machine.hold(stream)
    machine.touch(stream, base, G)
    fence = driver.fence(stream)
    assert early.passed() and driver.fence(other).passed()
    assert not fence.passed() and not fence.wait(20)
    assert f"{stream:x}" in fence.describe() and machine.vendor in fence.describe()
    machine.hold(stream, False)
    assert fence.wait(1000 * DEADLINE)
    before = machine.counts()
    assert fence.passed() and fence.wait(0)
    assert machine.calls_since(before) == {}


def test_the_default_streams_fence_is_behind_all_that_block_it(
    machine: Machine, driver: DeviceDriver
) -> None:
    base = driver.reserve(G)
    Subject(driver).filled(base, 1, 1)
    streams = [machine.stream(blocking=True), machine.stream(blocking=False)]
    for stream in streams:
        machine.hold(stream)
        machine.touch(stream, base, G)
    fence = driver.fence()
    assert not fence.passed()
    machine.hold(streams[0], False)
    assert fence.passed()
    machine.hold(streams[1], False)


def test_events_are_used_again(machine: Machine, driver: DeviceDriver) -> None:
    made = machine.calls["create_event"]
    for _ in range(100):
        assert driver.fence().passed()
    assert machine.counts()[made] == 1
    fences = [driver.fence() for _ in range(5)]  # dropped before anybody asks
    assert machine.counts()[made] == 5
    fences.clear()
    gc.collect()
    fences = [driver.fence() for _ in range(5)]
    assert machine.counts()[made] == 5
    assert all(fence.passed() for fence in fences)


def test_a_dropped_fence_does_not_disturb_its_events_next_owner(
    machine: Machine, driver: DeviceDriver
) -> None:
    stream = machine.stream()
    base = driver.reserve(G)
    Subject(driver).filled(base, 1, 1)
    machine.hold(stream)
    machine.touch(stream, base, G)
    dropped = driver.fence(stream)
    del dropped
    gc.collect()
    assert driver.fence(machine.stream()).passed()
    assert not driver.fence(stream).passed()
    machine.hold(stream, False)
