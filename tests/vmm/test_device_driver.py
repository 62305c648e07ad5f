"""What is true of drivers over a device (csrc/vmm/device*.h), through look-alike libraries."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from kvcached_core.vmm import (
    Arena,
    CudaDriver,
    DeviceDriver,
    DeviceLost,
    DeviceUnavailable,
    DriverError,
    HipDriver,
    HostLimit,
    InvalidArgument,
    OutOfMemory,
)
from lookalike import SWITCH, VENDORS, VISIT, Machine

from .device_life import STEPS, G, check_costs, in_a_thread, life_of_a_page
from .device_subject import DeviceSubject
from .subject import Subject

pytestmark = pytest.mark.conformance("look-alike")

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


@pytest.mark.parametrize(
    "name", ["cuInit", "cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority"]
)
def test_a_start_that_fails_takes_nothing(name: str) -> None:
    machine = Machine("cuda", G)
    machine.fail(name, 2)
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        machine.driver()
    assert machine.leftovers() == (0, 0, 0)
    machine.driver()


# --- what it costs ---


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
@pytest.mark.parametrize("kind", STEPS)
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
