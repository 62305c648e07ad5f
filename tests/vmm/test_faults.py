"""What holds when driver calls fail: the arena's all-or-nothing and its quarantine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from kvcached_core.vmm import (
    Arena,
    DriverError,
    FaultyDriver,
    Handle,
    HostDriver,
    InjectedFault,
    InvalidArgument,
    OutOfMemory,
    Quarantined,
    probe,
    readable_bytes,
)

from .subject import DEADLINE, WAIT_US, make_driver, wait_for_call

G = 64 * 1024
KINDS = (
    "reserve",
    "create",
    "release",
    "map",
    "set_access",
    "unmap",
    "zero",
    "free_bytes",
)


# A device's memory is not zero as it comes.
@pytest.fixture(params=["host", "cuda"])
def driver(request: pytest.FixtureRequest) -> FaultyDriver:
    return FaultyDriver(make_driver(request.param, G))


host_only = pytest.mark.parametrize("driver", ["host"], indirect=True)


@pytest.mark.parametrize("error", ["error", "oom"])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["map", "set_access", "zero"])
def test_a_failed_map_leaves_everything_as_it_was(
    driver: FaultyDriver, kind: str, n: int, error: str
) -> None:
    arena = Arena.reserve(driver, 4 * G)
    handles = [driver.create(G) for _ in range(3)]
    driver.fail_at(kind, n, error)
    for i in range(n - 1):
        arena.map(i * G, handles[i], fresh=False)
    before = driver.counts()

    with pytest.raises(OutOfMemory if error == "oom" else DriverError, match="injected") as caught:
        arena.map((n - 1) * G, handles[n - 1], fresh=False)

    assert not isinstance(caught.value, Quarantined)
    assert (arena.mapped_bytes, arena.quarantined_bytes) == ((n - 1) * G, 0)
    assert not arena.is_mapped((n - 1) * G)
    assert readable_bytes(arena.base, arena.size) == (n - 1) * G
    assert driver.held_bytes() == 3 * G
    undone = 0 if kind == "map" else 1
    assert driver.counts()["unmap"] == before["unmap"] + undone
    assert driver.counts()["release"] == 0
    # The handle is still the caller's, the offset still free: the same call succeeds now.
    for i in range(n - 1, 3):
        arena.map(i * G, handles[i], fresh=False)
    assert readable_bytes(arena.base, arena.size) == 3 * G


def test_fresh_memory_is_not_zeroed_again(driver: FaultyDriver) -> None:
    arena = Arena.reserve(driver, 2 * G)
    arena.map(0, driver.create(G), fresh=True)
    fresh = 0 if driver.creates_zeroed() else 1
    assert driver.counts()["zero"] == fresh
    arena.map(G, driver.create(G), fresh=False)
    assert driver.counts()["zero"] == fresh + 1


@pytest.mark.parametrize("kind", ["set_access", "zero"])
def test_a_map_that_cannot_be_undone_is_quarantined(driver: FaultyDriver, kind: str) -> None:
    arena = Arena.reserve(driver, 4 * G)
    arena.map(0, driver.create(G))
    driver.fail_at(kind, 1)
    driver.fail_at("unmap", 1)
    with pytest.raises(Quarantined, match=f"{kind}.*unmap.*{2 * G} bytes at offset {G}"):
        arena.map(G, driver.create(2 * G), fresh=False)
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (G, 2 * G)
    assert arena.is_mapped(0) and not arena.is_mapped(G)
    for offset in (G, 2 * G):
        with pytest.raises(InvalidArgument, match="quarantine"):
            arena.map(offset, driver.create(G))
    with pytest.raises(InvalidArgument):
        arena.unmap(G)
    arena.map(3 * G, driver.create(G))  # the rest of the arena still works

    arena.release()  # the driver has come round: nothing stays behind
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, 0)
    assert readable_bytes(arena.base, arena.size) == 0
    assert driver.held_bytes() == 2 * G  # the two handles that were refused


def test_a_failed_unmap_leaves_it_mapped(driver: FaultyDriver) -> None:
    arena = Arena.reserve(driver, G)
    arena.map(0, driver.create(G))
    driver.fail_at("unmap", 1)
    with pytest.raises(DriverError, match="injected"):
        arena.unmap(0)
    assert arena.is_mapped(0) and arena.mapped_bytes == G and probe(arena.base, G)
    assert arena.unmap(0).size == G


@pytest.mark.parametrize(("kind", "still_readable"), [("unmap", G), ("release", 0)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_release_goes_on_after_an_error_and_may_be_repeated(
    driver: FaultyDriver, kind: str, still_readable: int, n: int
) -> None:
    arena = Arena.reserve(driver, 3 * G)
    for i in range(3):
        arena.map(i * G, driver.create(G))
    driver.fail_at(kind, n)
    arena.release()
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, G)
    assert driver.held_bytes() == G
    assert readable_bytes(arena.base, arena.size) == still_readable
    arena.release()
    assert (arena.mapped_bytes, arena.quarantined_bytes, driver.held_bytes()) == (0, 0, 0)
    assert readable_bytes(arena.base, arena.size) == 0


@pytest.mark.parametrize("kind", ["unmap", "release", "unreserve"])
def test_the_end_of_an_arena_survives_a_driver_that_always_fails(
    driver: FaultyDriver, kind: str
) -> None:
    arena = Arena.reserve(driver, 2 * G)
    base = arena.base
    arena.map(0, driver.create(G))
    driver.fail_always(kind)
    del arena
    assert driver.counts()["unreserve"] == (0 if kind == "unmap" else 1)
    assert driver.held_bytes() == (0 if kind == "unreserve" else G)
    assert readable_bytes(base, 2 * G) == (G if kind == "unmap" else 0)


def test_a_failed_reserve_leaves_nothing(driver: FaultyDriver) -> None:
    driver.fail_at("reserve", 1)
    with pytest.raises(DriverError):
        Arena.reserve(driver, G)
    arena = Arena.reserve(driver, G)
    del arena
    assert driver.counts()["unreserve"] == 1


@dataclass
class Life:
    """What one run of a small life has got so far: handles are in one place each."""

    driver: FaultyDriver
    arena: Arena | None = None
    loose: list[Handle] = field(default_factory=list)

    def grow(self, offset: int) -> None:
        self.loose.append(self.driver.create(G))
        self.place(offset)

    def place(self, offset: int) -> None:
        assert self.arena is not None
        self.arena.map(offset, self.loose[-1], fresh=False)
        self.loose.pop()

    def shrink(self, offset: int) -> None:
        assert self.arena is not None
        self.loose.append(self.arena.unmap(offset))
        self.drop()

    def drop(self) -> None:
        self.driver.release(self.loose[-1])
        self.loose.pop()

    def run(self) -> None:
        self.arena = Arena.reserve(self.driver, 4 * G)
        self.driver.free_bytes()
        for i in range(3):
            self.grow(i * G)
        for i in (1, 0):
            self.shrink(i * G)
        self.grow(3 * G)


def calls_of_a_life() -> dict[str, int]:
    driver = FaultyDriver(HostDriver(G))
    life = Life(driver)
    life.run()
    return driver.counts()


@pytest.mark.parametrize("error", ["error", "oom"])
@pytest.mark.parametrize("kind", [*KINDS, "any"])
def test_no_byte_is_lost_whichever_call_fails(kind: str, error: str) -> None:
    for n in range(1, calls_of_a_life()[kind] + 1):
        inner = HostDriver(G)
        driver = FaultyDriver(inner)
        life = Life(driver)
        driver.fail_at(kind, n, error)
        with pytest.raises(DriverError, match="injected") as caught:
            life.run()
        assert isinstance(caught.value, OutOfMemory if error == "oom" else InjectedFault)
        mapped = life.arena.mapped_bytes if life.arena else 0
        assert inner.held_bytes() == mapped + len(life.loose) * G
        if life.arena:
            assert life.arena.quarantined_bytes == 0
            assert readable_bytes(life.arena.base, life.arena.size) == mapped
        retry(life)
        assert inner.held_bytes() == 0


def retry(life: Life) -> None:
    """The fault has struck: whatever is loose can be mapped or released, and all works again."""
    if life.arena:
        while life.loose:
            free = next(i * G for i in range(4) if not life.arena.is_mapped(i * G))
            life.place(free)
        for i in range(4):
            if life.arena.is_mapped(i * G):
                life.shrink(i * G)
        base, size = life.arena.base, life.arena.size
        assert readable_bytes(base, size) == life.arena.mapped_bytes == 0
    life.run()
    assert life.arena is not None
    life.arena.release()


@host_only
def test_release_while_a_map_is_under_way(driver: FaultyDriver) -> None:
    """The late map finds the arena closed, undoes itself and leaves the handle to its caller."""
    arena = Arena.reserve(driver, 2 * G)
    arena.map(0, driver.create(G))
    handle = driver.create(G)
    driver.delay("set_access", WAIT_US)
    caught: list[BaseException] = []

    def late() -> None:
        try:
            arena.map(G, handle)
        except DriverError as error:
            caught.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    wait_for_call(driver, "set_access", 2)
    arena.release()
    thread.join(DEADLINE)
    assert [type(error) for error in caught] == [InvalidArgument]
    assert "released while" in str(caught[0])
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, 0)
    assert readable_bytes(arena.base, arena.size) == 0
    assert driver.held_bytes() == G
    driver.release(handle)


@host_only
def test_calls_that_overlap_in_time_do_not_overlap_in_space(driver: FaultyDriver) -> None:
    arena = Arena.reserve(driver, 4 * G)
    handle = driver.create(2 * G)
    driver.delay("map", WAIT_US)
    thread = threading.Thread(target=arena.map, args=(G, handle))
    thread.start()
    wait_for_call(driver, "map", 1)
    driver.delay("map", 0)
    for offset, granules in ((0, 2), (G, 1), (2 * G, 1)):
        with pytest.raises(InvalidArgument, match="under way"):
            arena.map(offset, driver.create(granules * G))
    assert not arena.is_mapped(G)
    with pytest.raises(InvalidArgument):
        arena.unmap(G)
    arena.map(3 * G, driver.create(G))  # elsewhere, work goes on meanwhile
    thread.join(DEADLINE)
    assert arena.mapped_bytes == 3 * G


def end_of_arena(driver: FaultyDriver) -> Callable[[], None]:
    arenas = [Arena.reserve(driver, G)]
    return arenas.clear


def end_of_tensor(driver: FaultyDriver) -> Callable[[], None]:
    tensors = [np.from_dlpack(Arena.reserve(driver, G).tensor(0, G))]
    return tensors.clear


@host_only
@pytest.mark.parametrize("prepare", [end_of_arena, end_of_tensor])
def test_other_threads_run_while_an_arena_ends(
    driver: FaultyDriver, prepare: Callable[[FaultyDriver], Callable[[], None]]
) -> None:
    end = prepare(driver)
    driver.delay("unreserve", WAIT_US)
    ended = threading.Event()

    def finish() -> None:
        end()
        ended.set()

    thread = threading.Thread(target=finish)
    thread.start()
    wait_for_call(driver, "unreserve", 1)
    # Had this thread been kept waiting until the call was over, the other would end within this.
    assert not ended.wait(WAIT_US / 1e6 / 10)
    assert ended.wait(DEADLINE)
    thread.join(DEADLINE)
