"""What holds when driver calls fail: the arena's all-or-nothing, its quarantine, the injector."""

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
    InvalidArgument,
    OutOfMemory,
    Quarantined,
    probe,
    readable_bytes,
)

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
    "free_bytes",
)
DEADLINE = 30  # seconds; only guards against a hang


@pytest.fixture
def driver() -> FaultyDriver:
    return FaultyDriver(HostDriver(G))


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
    assert driver.counts()["zero"] == 0
    arena.map(G, driver.create(G), fresh=False)
    assert driver.counts()["zero"] == 1


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
        assert self.arena is not None
        self.arena.map(offset, self.loose[-1], fresh=False)
        self.loose.pop()

    def shrink(self, offset: int) -> None:
        assert self.arena is not None
        self.loose.append(self.arena.unmap(offset))
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


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_no_byte_is_lost_whichever_call_fails(driver: FaultyDriver, kind: str, n: int) -> None:
    life = Life(driver)
    driver.fail_at(kind, n)
    failed = False
    try:
        life.run()
    except DriverError as error:
        assert "injected" in str(error)
        failed = True
    mapped = life.arena.mapped_bytes if life.arena else 0
    assert driver.held_bytes() == mapped + len(life.loose) * G
    if life.arena:
        assert life.arena.quarantined_bytes == 0
        assert readable_bytes(life.arena.base, life.arena.size) == mapped
    assert failed == (kind != "unreserve" and driver.counts()[kind] >= n)

    driver.fail_at(kind, 0)
    for handle in life.loose:
        driver.release(handle)
    if life.arena:
        life.arena.release()
    assert driver.held_bytes() == 0


def wait_for_call(driver: FaultyDriver, kind: str, count: int) -> None:
    """Returns while that call waits in the driver; it gets there only if this thread may run."""
    tick = threading.Event()
    for _ in range(DEADLINE * 1000):
        if driver.counts()[kind] >= count:
            return
        tick.wait(0.001)
    raise AssertionError(f"no {kind} call within {DEADLINE} s: {driver.counts()}")


# Long enough that a waiting call is seen to wait, also on a busy machine.
WAIT_US = 1_000_000


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


def test_the_injector_counts_and_strikes_as_told(driver: FaultyDriver) -> None:
    assert driver.counts() == dict.fromkeys(KINDS, 0)
    driver.create(G)
    driver.fail_at("create", 2)
    driver.create(G)
    with pytest.raises(DriverError, match="call 3 of create"):
        driver.create(G)
    driver.create(G)
    assert driver.counts()["create"] == 4
    driver.fail_at("create", 1)
    driver.fail_at("create", 0)
    driver.create(G)
    driver.fail_always("create", "oom")
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            driver.create(G)
    driver.reset()
    assert driver.counts() == dict.fromkeys(KINDS, 0)
    driver.create(G)
    assert driver.held_bytes() == 5 * G


def test_the_quota_is_of_bytes_alive(driver: FaultyDriver) -> None:
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


def test_unknown_words_are_refused_with_the_known_ones(driver: FaultyDriver) -> None:
    with pytest.raises(InvalidArgument, match=r"'creat'.*create"):
        driver.fail_at("creat", 1)
    with pytest.raises(InvalidArgument, match=r"'boom'.*oom"):
        driver.fail_at("create", 1, "boom")
