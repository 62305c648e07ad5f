"""The fault-injecting driver itself: it counts, strikes, waits, dies and refuses as told."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcached_core.vmm import (
    DeviceLost,
    DriverError,
    FaultyDriver,
    HostDriver,
    InjectedFault,
    InvalidArgument,
    OutOfMemory,
    QuotaReached,
    RangeInUse,
)

from .subject import DEADLINE, WAIT_US, wait_for_call

G = 64 * 1024
KINDS = (
    "reserve",
    "unreserve",
    "create",
    "release",
    "map",
    "set_access",
    "unmap",
    "zero",
    "fence",
    "free_bytes",
    "held_bytes",
)


@pytest.fixture
def driver() -> FaultyDriver:
    return FaultyDriver(HostDriver(G))


def steps(driver: FaultyDriver) -> list[Callable[[], object]]:
    """Every kind of call once, in the order of KINDS_IN_ORDER; the last leaves nothing."""
    at: list[int] = []
    handles = []
    return [
        lambda: at.append(driver.reserve(2 * G)),
        lambda: handles.append(driver.create(G)),
        lambda: driver.map(at[0], handles[0]),
        lambda: driver.set_access(at[0], G),
        lambda: driver.zero(at[0], G),
        driver.fence,
        driver.free_bytes,
        driver.held_bytes,
        lambda: driver.unmap(at[0], G),
        lambda: driver.release(handles[0]),
        lambda: driver.unreserve(at[0], 2 * G),
    ]


KINDS_IN_ORDER = (
    "reserve",
    "create",
    "map",
    "set_access",
    "zero",
    "fence",
    "free_bytes",
    "held_bytes",
    "unmap",
    "release",
    "unreserve",
)


# --- counting and failing ---


def test_every_call_is_counted_by_kind_and_together(driver: FaultyDriver) -> None:
    assert driver.counts() == dict.fromkeys((*KINDS, "any"), 0)
    for done, step in enumerate(steps(driver), 1):
        step()
        assert driver.counts()["any"] == done
    assert driver.counts() == dict.fromkeys(KINDS, 1) | {"any": len(KINDS)}
    driver.reset()
    assert driver.counts() == dict.fromkeys((*KINDS, "any"), 0)


@pytest.mark.parametrize("n", range(1, len(KINDS) + 1))
@pytest.mark.parametrize("by_kind", [True, False])
def test_the_nth_call_fails_once_without_effect(
    driver: FaultyDriver, n: int, by_kind: bool
) -> None:
    kind = KINDS_IN_ORDER[n - 1]
    driver.fail_at(*((kind, 1) if by_kind else ("any", n)))
    for number, step in enumerate(steps(driver), 1):
        if number == n:
            with pytest.raises(InjectedFault, match=f"call 1 of {kind}"):
                step()
        step()
    assert driver.held_bytes() == 0
    assert driver.counts()[kind] == (3 if kind == "held_bytes" else 2)


def test_a_kinds_calls_are_struck_as_counted(driver: FaultyDriver) -> None:
    driver.create(G)
    driver.fail_at("create", 2)
    driver.fail_at("create", 3, "oom")  # a second one does not lift the first
    driver.create(G)
    with pytest.raises(InjectedFault, match="call 3 of create"):
        driver.create(G)
    with pytest.raises(OutOfMemory, match="call 4 of create"):
        driver.create(G)
    driver.create(G)
    assert driver.counts()["create"] == 5
    driver.fail_at("create", 1)
    driver.fail_always("create", "oom")
    for error in (OutOfMemory, OutOfMemory):
        with pytest.raises(error):
            driver.create(G)
    driver.fail_at("create", 1)
    driver.fail_at("create", 0)
    driver.create(G)
    driver.fail_always("any")
    for step in steps(driver)[:2]:
        with pytest.raises(InjectedFault):
            step()
    driver.reset()
    driver.create(G)
    assert driver.held_bytes() == 5 * G


def test_a_lost_device_stays_lost(driver: FaultyDriver) -> None:
    driver.check_alive()
    driver.fail_at("any", 2, "lost")
    made = driver.create(G)
    for step in steps(driver)[:2]:
        with pytest.raises(DeviceLost):
            step()
    with pytest.raises(DeviceLost):
        driver.check_alive()
    driver.reset()
    driver.check_alive()
    driver.release(made)


def test_unknown_words_are_refused_with_the_known_ones(driver: FaultyDriver) -> None:
    with pytest.raises(InvalidArgument, match=r"'creat'.*create.*any"):
        driver.fail_at("creat", 1)
    with pytest.raises(InvalidArgument, match=r"'boom'.*oom, lost, die"):
        driver.fail_at("create", 1, "boom")
    for error in ("error", "oom", "lost"):
        with pytest.raises(InvalidArgument, match=rf"'{error}'.*after the effect.*'die'"):
            driver.fail_at("create", 1, error, after=True)
    with pytest.raises(InvalidArgument, match="from 1"):
        driver.delay_at("create", 0, 1)
    driver.create(G)


def test_a_waiting_call_has_its_effect_after_or_before(driver: FaultyDriver) -> None:
    for after, held in ((False, 0), (True, G)):
        inner = HostDriver(G)
        driver = FaultyDriver(inner)
        driver.free_bytes()
        driver.delay_at("any", 2, WAIT_US, after=after)
        driver.free_bytes()  # the next one waits
        ended = threading.Event()

        def create(driver: FaultyDriver = driver, ended: threading.Event = ended) -> None:
            driver.create(G)
            ended.set()

        thread = threading.Thread(target=create)
        thread.start()
        wait_for_call(driver, "create", 1)
        assert not ended.wait(WAIT_US / 1e6 / 10)
        assert inner.held_bytes() == held
        thread.join(DEADLINE)
        assert ended.is_set() and inner.held_bytes() == G


DYING = """
import sys
from pathlib import Path
from kvcached_core.vmm import FaultyDriver, HostDriver
driver = FaultyDriver(HostDriver({granule}))
(fd,) = (fd for fd in Path("/proc/self/fd").iterdir()
         if fd.is_symlink() and "memfd:kvcached" in str(fd.readlink()))
driver.create({granule})
driver.fail_at("any", 2, "die", after={after})
print(fd.name, flush=True)
sys.stdin.readline()
driver.free_bytes()
try:
    driver.create({granule})
finally:
    print("survived", flush=True)
"""


@pytest.mark.parametrize(("after", "granules"), [(False, 1), (True, 2)])
def test_the_process_dies_before_or_after_the_effect(after: bool, granules: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", DYING.format(granule=G, after=after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    number = child.stdout.readline().strip()
    with Path(f"/proc/{child.pid}/fd/{number}").open("rb") as memory:
        out, _ = child.communicate("go\n", timeout=DEADLINE)
        assert (child.returncode, out) == (-signal.SIGKILL, "")
        assert Path(f"/proc/self/fd/{memory.fileno()}").stat().st_blocks * 512 == granules * G


def test_only_a_call_that_succeeded_dies_after_its_effect() -> None:
    inner = FaultyDriver(HostDriver(G))
    driver = FaultyDriver(inner)
    inner.fail_at("create", 1)
    driver.fail_at("create", 1, "die", after=True)
    with pytest.raises(InjectedFault):
        driver.create(G)
    driver.create(G)


# --- quotas ---


def test_the_quota_of_bytes_is_of_those_alive(driver: FaultyDriver) -> None:
    driver.quota(3 * G)
    kept = driver.create(2 * G)
    assert driver.free_bytes() == G
    with pytest.raises(OutOfMemory, match=rf"{2 * G} bytes asked for, {2 * G} of {3 * G}"):
        driver.create(2 * G)
    driver.create(G)
    driver.release(kept)
    driver.create(2 * G)
    driver.quota(0)
    assert driver.free_bytes() == 0
    with pytest.raises(OutOfMemory):
        driver.create(G)
    driver.quota(None)
    driver.create(G)
    assert driver.held_bytes() == 4 * G


@pytest.mark.parametrize("what", ["handles", "descriptors"])
def test_the_quotas_of_handles_and_descriptors(driver: FaultyDriver, what: str) -> None:
    driver.quota(**{what: 2})
    kept = driver.create(8 * G)
    driver.create(G)
    with pytest.raises(QuotaReached, match=f"quota: 1 {what} asked for, 2 of 2 in use") as caught:
        driver.create(G)
    assert not isinstance(caught.value, (OutOfMemory, InvalidArgument, InjectedFault))
    with pytest.raises(InvalidArgument):
        driver.release(type(kept)(kept.id, G))
    with pytest.raises(QuotaReached):
        driver.create(G)
    driver.release(kept)
    driver.create(G)
    assert driver.held_bytes() == 2 * G


def test_the_quota_of_addresses(driver: FaultyDriver) -> None:
    driver.quota(addresses=4 * G)
    base = driver.reserve(3 * G)
    with pytest.raises(QuotaReached, match=f"{2 * G} bytes of addresses asked for, {3 * G} of"):
        driver.reserve(2 * G)
    driver.reserve(G)
    driver.unreserve(base, 3 * G)
    driver.reserve(3 * G)


def test_what_fails_underneath_is_not_charged() -> None:
    inner = FaultyDriver(HostDriver(G))
    driver = FaultyDriver(inner)
    driver.quota(G, handles=1, addresses=G)
    for kind, call in (("create", driver.create), ("reserve", driver.reserve)):
        inner.fail_at(kind, 1)
        with pytest.raises(InjectedFault):
            call(G)
        call(G)
        with pytest.raises(DriverError, match="quota"):
            call(G)


# --- work ---


def test_every_edit_of_a_range_in_use_is_counted_and_refused(driver: FaultyDriver) -> None:
    base = driver.reserve(4 * G)
    handle, other = driver.create(2 * G), driver.create(2 * G)
    driver.map(base, handle)
    driver.set_access(base, 2 * G)
    edits: list[Callable[[], object]] = [
        lambda: driver.map(base + 2 * G, other),
        lambda: driver.unmap(base, 2 * G),
        lambda: driver.set_access(base, 2 * G),
        lambda: driver.zero(base + G, 2),
        lambda: driver.release(handle),
        lambda: driver.unreserve(base, 4 * G),
    ]
    work = [(base + G + 1, 1), (base + 2 * G, G), (base + 3 * G, 1)]
    for address, size in work:
        driver.begin_work(address, size)
    for done, edit in enumerate(edits, 1):
        with pytest.raises(RangeInUse, match=r"of \[0x[0-9a-f]+, 0x[0-9a-f]+\].*work") as caught:
            edit()
        assert isinstance(caught.value, InvalidArgument)
        assert driver.violations() == done
    # Beside what is in use, and once nothing is, all goes through.
    driver.zero(base, G + 1)
    driver.zero(base + G + 2, G - 2)
    for address, size in work:
        driver.end_work(address, size)
    edits[0]()
    edits[1]()
    driver.release(handle)
    driver.unmap(base + 2 * G, 2 * G)
    edits[5]()
    assert driver.violations() == len(edits)


def test_work_ends_as_often_as_it_began(driver: FaultyDriver) -> None:
    base = driver.reserve(2 * G)
    handle = driver.create(G)
    for _ in range(2):
        driver.begin_work(base, G)
    for wrong in ((base, G - 1), (base + 1, G), (base, 0)):
        with pytest.raises(InvalidArgument, match="end_work"):
            driver.end_work(*wrong)
    driver.end_work(base, G)
    with pytest.raises(RangeInUse):
        driver.map(base, handle)
    driver.end_work(base, G)
    with pytest.raises(InvalidArgument, match="end_work"):
        driver.end_work(base, G)
    driver.map(base, handle)
    for wrong in ((base, 0), (2**64 - 1, 2)):
        with pytest.raises(InvalidArgument, match="begin_work"):
            driver.begin_work(*wrong)
    assert driver.violations() == 1
    driver.begin_work(base, G)
    driver.reset()
    assert driver.violations() == 0
    driver.unmap(base, G)


def test_work_may_not_begin_where_an_edit_is_under_way() -> None:
    inner = FaultyDriver(HostDriver(G))
    driver = FaultyDriver(inner)
    base = driver.reserve(2 * G)
    handle = driver.create(G)
    inner.delay("map", WAIT_US)
    thread = threading.Thread(target=driver.map, args=(base, handle))
    thread.start()
    wait_for_call(inner, "map", 1)
    driver.begin_work(base + G, G)
    with pytest.raises(RangeInUse, match="an edit under way"):
        driver.begin_work(base + 5, 1)
    thread.join(DEADLINE)
    driver.begin_work(base + 5, 1)
    assert driver.violations() == 1
