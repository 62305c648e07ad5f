"""What is true of drivers over a device (csrc/vmm/device*.h), through look-alike libraries."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from kvcached_core.vmm import (
    Arena,
    CudaDriver,
    DeviceDriver,
    DeviceLost,
    DeviceUnavailable,
    Driver,
    DriverError,
    Handle,
    HipDriver,
    HostLimit,
    InvalidArgument,
    OutOfMemory,
)
from lookalike import GLOBAL, RELAXED, SWITCH, VENDORS, VISIT, Machine

from .device_subject import DeviceSubject
from .subject import DEADLINE, Subject

G = 64 * 1024


@pytest.fixture(params=VENDORS)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param, G)


@pytest.fixture
def driver(machine: Machine) -> DeviceDriver:
    return machine.driver()


def in_a_thread(work: Callable[[], object]) -> None:
    """Runs it in a thread that nobody has used, and raises what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Step(NamedTuple):
    kind: str
    call: Callable[[], object]
    calls: tuple[str, ...]  # of the library


def life_of_a_page(driver: Driver) -> Iterator[Step]:
    """Every kind of call, in an order that works; a step may be tried again."""
    base: list[int] = []
    handle: list[Handle] = []
    yield Step("reserve", lambda: base.append(driver.reserve(4 * G)), ("reserve",))
    yield Step("create", lambda: handle.append(driver.create(G)), ("create",))
    yield Step("map", lambda: driver.map(base[0], handle[0]), ("map",))
    yield Step("set_access", lambda: driver.set_access(base[0], G), ("set_access",))
    yield Step("zero", lambda: driver.zero(base[0], G), ("zero", "record", "query"))
    yield Step("fence", lambda: driver.fence(), ("record",))
    yield Step("free_bytes", lambda: driver.free_bytes(), ("free_bytes",))
    yield Step("held_bytes", lambda: driver.held_bytes(), ())
    yield Step("unmap", lambda: driver.unmap(base[0], G), ("unmap",))
    yield Step("release", lambda: driver.release(handle[0]), ("release",))
    yield Step("unreserve", lambda: driver.unreserve(base[0], 4 * G), ("unreserve",))


KINDS = [step.kind for step in life_of_a_page(None) if step.calls]  # type: ignore[arg-type]


def live(driver: DeviceDriver) -> None:
    for step in life_of_a_page(driver):
        step.call()


# --- what it is ---


def test_a_driver_says_which_device_it_is(machine: Machine) -> None:
    keys = {
        "cuda": (
            "cuda:GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
            "cuda:GPU-10111213-1415-1617-1819-1a1b1c1d1e1f",
        ),
        "hip": ("hip:PCI-0000:03:00.0", "hip:GPU-0123456789abcdef"),
    }[machine.vendor]
    kind = {"cuda": 2, "hip": 10}[machine.vendor]
    for device, key in enumerate(keys):
        driver = machine.driver(device)
        assert (driver.name(), driver.device_key()) == (machine.vendor, key)
        assert driver.dlpack_device() == (kind, device)
        assert Arena.reserve(driver, G).tensor(0, 1).__dlpack_device__() == (kind, device)
        assert driver.granularity() == G and not driver.creates_zeroed()


@pytest.mark.parametrize(
    ("make", "named"), [(CudaDriver, "libcuda.so.1"), (HipDriver, "libamdhip64.so.6")]
)
def test_without_a_library_the_error_says_what_was_tried(
    make: Callable[..., DeviceDriver], named: str
) -> None:
    for library in (f"/nowhere/{named}", "libc.so.6"):
        with pytest.raises(DeviceUnavailable, match=library) as caught:
            make(0, library)
        assert any(word in str(caught.value) for word in ("install", "update"))


def test_the_usual_library_is_named_where_there_is_none() -> None:
    """On a machine with a device it is there, and this shows nothing."""
    for make, named in ((CudaDriver, "libcuda.so.1"), (HipDriver, "libamdhip64.so.7")):
        try:
            make(0)
        except DeviceUnavailable as error:
            assert named in str(error) or "device 0" in str(error)


@pytest.mark.parametrize("device", [-1, 2])
def test_a_device_that_there_is_not_is_refused_by_number(machine: Machine, device: int) -> None:
    with pytest.raises(DeviceUnavailable, match=rf"{machine.vendor} device {device}.* sees 2"):
        machine.driver(device)


@pytest.mark.parametrize("name", ["cuInit", "cuDevicePrimaryCtxRetain", "cuStreamCreate"])
def test_a_start_that_fails_takes_nothing(name: str) -> None:
    machine = Machine("cuda", G)
    machine.fail(name, 2)
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        machine.driver()
    assert machine.leftovers() == (0, 0, 0)
    machine.driver()


# --- what it costs ---


def named(machine: Machine, step: Step, *visits: dict[str, int]) -> Counter[str]:
    expected = Counter(machine.calls[call] for call in step.calls)
    for visit in visits if step.calls else ():
        expected += Counter(visit)
    return expected


def check_costs(machine: Machine, driver: DeviceDriver, *visits: dict[str, int]) -> None:
    driver.fence()  # from now on there is an event at hand
    for step in life_of_a_page(driver):
        before = machine.counts()
        step.call()
        assert machine.calls_since(before) == named(machine, step, *visits), step.kind


def test_each_call_is_one_call_of_the_library_in_a_thread_of_ours(
    machine: Machine, driver: DeviceDriver
) -> None:
    def work() -> None:
        driver.adopt_thread()
        before = machine.counts()
        driver.adopt_thread()
        assert machine.calls_since(before) == {}
        check_costs(machine, driver)

    in_a_thread(work)


@pytest.mark.parametrize("device", [0, 1])
def test_another_thread_is_looked_at_set_and_put_back(
    machine: Machine, driver: DeviceDriver, device: int
) -> None:
    visits = (
        [VISIT[machine.vendor]] if device == 1 else [VISIT[machine.vendor], SWITCH[machine.vendor]]
    )

    def work() -> None:
        machine.make_current(device)
        check_costs(machine, driver, *visits)

    in_a_thread(work)


def test_an_arena_adds_no_call(machine: Machine, driver: DeviceDriver) -> None:
    def work() -> None:
        driver.adopt_thread()
        driver.fence()
        arena = Arena.reserve(driver, 4 * G)
        before = machine.counts()
        for page in range(4):
            arena.map(page * G, driver.create(G))
        for page in range(4):
            driver.release(arena.unmap(page * G))
        once = ("create", "map", "set_access", "zero", "record", "query", "unmap", "release")
        assert machine.calls_since(before) == {machine.calls[name]: 4 for name in once}

    in_a_thread(work)


def test_what_is_refused_or_known_costs_nothing(machine: Machine, driver: DeviceDriver) -> None:
    base = driver.reserve(4 * G)
    handle = driver.create(G)
    driver.map(base, handle)
    driver.set_access(base, G)
    before = machine.counts()
    driver.set_access(base, G)
    assert (driver.granularity(), driver.held_bytes()) == (G, G)
    for call in (
        lambda: driver.create(G + 1),
        lambda: driver.release(handle),
        lambda: driver.map(base + G, handle),
        lambda: driver.unmap(base + G, G),
        lambda: driver.zero(base, 2 * G),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert machine.calls_since(before) == {}


# --- what a status means ---

COMMON = {
    1: InvalidArgument,
    2: OutOfMemory,
    205: HostLimit,
    304: HostLimit,
    208: InvalidArgument,
    801: DriverError,
    900: DriverError,
    999: DriverError,
    12345: DriverError,
}
LOST = {
    "cuda": (
        3,
        4,
        46,
        100,
        201,
        214,
        220,
        226,
        700,
        702,
        709,
        710,
        714,
        715,
        716,
        717,
        718,
        719,
        721,
    ),
    "hip": (3, 4, 53, 100, 201, 214, 700, 702, 709, 710, 719),
}
TRANSIENT = (802, 807, 909)


@pytest.mark.parametrize("status", COMMON)
@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_call_raises_what_its_status_means_and_has_no_effect(
    machine: Machine, driver: DeviceDriver, kind: str, status: int
) -> None:
    expected = COMMON[status]
    if (kind, status) == ("reserve", 2):
        expected = HostLimit  # of addresses
    driver.fence()
    for step in life_of_a_page(driver):
        if step.kind == kind:
            held = driver.held_bytes()
            machine.fail(machine.calls[step.calls[0]], status)
            with pytest.raises(DriverError, match=rf"{machine.vendor} .*\({status}\)") as caught:
                step.call()
            assert type(caught.value) is expected
            assert driver.held_bytes() == held
        step.call()
    driver.check_alive()
    assert machine.used() == driver.held_bytes() == 0


@pytest.mark.parametrize("status", TRANSIENT)
def test_what_is_transient_is_tried_again_and_not_for_ever(status: int) -> None:
    machine = Machine("cuda", G)
    driver = machine.driver()
    for n in (1, 2):
        machine.fail("cuMemCreate", status, n)
    handle = driver.create(G)
    assert machine.counts()["cuMemCreate"] == 3
    for n in range(1, 10):
        machine.fail("cuMemRelease", status, n)
    with pytest.raises(DriverError, match=rf"5 times.*\({status}\)"):
        driver.release(handle)
    assert machine.counts()["cuMemRelease"] == 5
    assert driver.held_bytes() == G


def test_memory_runs_out_as_the_device_says(machine: Machine) -> None:
    machine = Machine(machine.vendor, G, memory=4 * G)
    driver = machine.driver()
    handle = driver.create(3 * G)
    assert driver.free_bytes() == G
    with pytest.raises(OutOfMemory, match=f"{2 * G} bytes"):
        driver.create(2 * G)
    driver.release(handle)
    driver.create(4 * G)


# --- a lost device ---


@pytest.mark.parametrize(
    ("vendor", "status"), [(vendor, status) for vendor in VENDORS for status in LOST[vendor]]
)
def test_a_lost_device_is_lost_for_good(vendor: str, status: int) -> None:
    machine = Machine(vendor, G)
    driver = machine.driver()
    base = driver.reserve(2 * G)
    handle = driver.create(G)
    fence = driver.fence()
    driver.check_alive()
    machine.fail(machine.calls["map"], status)
    with pytest.raises(DeviceLost, match=rf"\({status}\)") as caught:
        driver.map(base, handle)
    assert driver.device_key() in str(caught.value) and "end this process" in str(caught.value)
    before = machine.counts()
    for call in (driver.free_bytes, driver.check_alive, driver.fence, fence.passed):
        with pytest.raises(DeviceLost, match=rf"\({status}\)"):
            call()
    del driver, fence, call
    gc.collect()
    assert machine.calls_since(before) == {}


def test_an_arena_on_a_lost_device_lets_go_of_all(machine: Machine, driver: DeviceDriver) -> None:
    arena = Arena.reserve(driver, 4 * G)
    arena.map(0, driver.create(G))
    machine.lose(700)
    with pytest.raises(DeviceLost):
        arena.unmap(0)
    arena.release()
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, G)
    del arena, driver
    gc.collect()


def test_a_driver_may_end_while_the_process_does(machine: Machine) -> None:
    """The library says then that it is torn down (4), and no more may be asked of it."""
    driver = machine.driver()
    driver.map(driver.reserve(G), driver.create(G))
    machine.lose(4)
    before = machine.counts()
    del driver
    gc.collect()
    looks = {"cuda": {"cuCtxGetCurrent"}, "hip": {"hipGetDevice", "hipGetLastError"}}
    assert set(machine.calls_since(before)) == looks[machine.vendor]


def test_the_end_gives_everything_back(machine: Machine) -> None:
    driver = machine.driver()
    base = driver.reserve(4 * G)
    Subject(driver).filled(base, 2, 7)
    driver.create(G)
    fences = [driver.fence() for _ in range(3)]
    assert machine.used() == 3 * G
    del driver
    gc.collect()
    assert machine.used() == 0
    assert fences[0].passed()  # and is good for itself
    fences.clear()
    gc.collect()
    assert machine.leftovers() == (0, 0, 0)


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


def test_zero_returns_when_the_zeros_are_there(machine: Machine, driver: DeviceDriver) -> None:
    base = driver.reserve(G)
    subject = Subject(driver)
    subject.filled(base, 1, 0xEE)
    ours = machine.last_stream()
    machine.hold(ours)
    queries = machine.counts().get(machine.calls["query"], 0)
    ended = threading.Event()

    def zero() -> None:
        driver.zero(base, G)
        ended.set()

    thread = threading.Thread(target=zero)
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


# --- what only one vendor has ---


def test_a_failure_of_ours_is_not_left_for_hips_user() -> None:
    machine = Machine("hip", G)
    driver = machine.driver()
    machine.hold(0)
    machine.fail("hipMemCreate", 2)
    with pytest.raises(OutOfMemory, match="hipErrorOutOfMemory"):
        driver.create(G)
    assert machine.library.hipPeekAtLastError() == 0
    driver.map(driver.reserve(G), driver.create(G))


def test_looking_through_the_library_shows_what_the_host_sees() -> None:
    machine = Machine("cuda", G)
    seen = DeviceSubject(machine.path, 1)
    host = Subject(seen.driver)
    base = seen.driver.reserve(4 * G)
    seen.filled(base, 1, 5)
    host.filled(base + G, 1, 6)
    seen.driver.map(base + 2 * G, seen.driver.create(G))
    seen.write(base + 3, b"abc")
    for subject in (seen, host):
        assert subject.read(base + 2, 5) == b"\x05abc\x05"
        assert subject.readable(base, 4 * G) == 2 * G
        assert subject.is_filled(base + G, G, 6) and not subject.is_filled(base, G, 5)
