"""The contract of csrc/vmm/arena.h: mapping, tensors, how long things live."""

from __future__ import annotations

import gc
import os
import queue
import threading

import numpy as np
import pytest

from kvcached_core.vmm import (
    Arena,
    Driver,
    Handle,
    HostDriver,
    InvalidArgument,
    readable_bytes,
)
from support.syscalls import Counter

from .subject import KINDS, Subject, make_driver, run_script

G = 64 * 1024
# By the machine's own numbers: getpid, mmap.
NUMBERS = {"x86_64": ("39", "9"), "aarch64": ("172", "222")}


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return make_driver(request.param, G)


# numpy takes tensors of the host's memory only.
host_only = pytest.mark.parametrize("driver", ["host"], indirect=True)


@pytest.fixture
def arena(driver: Driver) -> Arena:
    return Arena.reserve(driver, 8 * G)


@pytest.mark.parametrize(("asked", "got"), [(1, G), (G, G), (G + 1, 2 * G)])
def test_the_size_is_rounded_up(driver: Driver, asked: int, got: int) -> None:
    arena = Arena.reserve(driver, asked)
    assert arena.size == got
    assert arena.base % G == 0
    assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, 0)


@pytest.mark.parametrize("size", [0, 2**64 - 1])
def test_a_size_that_cannot_be_is_refused(driver: Driver, size: int) -> None:
    with pytest.raises(InvalidArgument, match=str(size)):
        Arena.reserve(driver, size)


def test_map_and_unmap(driver: Driver, arena: Arena) -> None:
    handle = driver.create(2 * G)
    arena.map(3 * G, handle)
    assert arena.mapped_bytes == 2 * G
    assert [arena.is_mapped(i * G) for i in range(8)] == [i in (3, 4) for i in range(8)]
    assert arena.is_mapped(5 * G - 1) and not arena.is_mapped(3 * G - 1)
    assert readable_bytes(arena.base, arena.size) == 2 * G
    back = arena.unmap(3 * G)
    assert (back.id, back.size) == (handle.id, handle.size)
    assert arena.mapped_bytes == 0 and not arena.is_mapped(3 * G)
    assert driver.held_bytes() == 2 * G  # the handle lives on, the caller's again
    driver.release(back)


def test_used_memory_is_zeroed_unless_it_is_called_fresh(driver: Driver, arena: Arena) -> None:
    subject = Subject(driver)
    arena.map(0, driver.create(G))
    subject.write(arena.base, b"\x77" * G)
    arena.map(G, arena.unmap(0), fresh=True)
    kept = b"\x77" if driver.creates_zeroed() else b"\0"
    assert subject.read(arena.base + G, G) == kept * G
    arena.map(0, arena.unmap(G), fresh=False)
    assert subject.read(arena.base, G) == bytes(G)


def test_zero_clears_just_these_bytes(driver: Driver, arena: Arena) -> None:
    subject = Subject(driver)
    arena.map(G, driver.create(G))
    subject.write(arena.base + G, b"\x55" * G)
    arena.zero(G + 10, 20)
    assert subject.read(arena.base + G, 40) == b"\x55" * 10 + bytes(20) + b"\x55" * 10
    for offset, size in ((0, 1), (G, G + 1), (8 * G, 1), (G, 0), (G, 2**64 - 1)):
        with pytest.raises(InvalidArgument):
            arena.zero(offset, size)


def test_wrong_ranges_are_refused(driver: Driver, arena: Arena) -> None:
    arena.map(2 * G, driver.create(2 * G))
    for offset, granules in (
        (2 * G, 1),  # on it
        (3 * G, 1),  # in it
        (G, 2),  # into it
        (7 * G, 2),  # past the end
        (8 * G, 1),
        (G + 1, 1),  # no multiple
        (2**64 - G, 1),
    ):
        handle = driver.create(granules * G)
        with pytest.raises(InvalidArgument):
            arena.map(offset, handle)
        driver.release(handle)
    for offset in (0, 3 * G, 9 * G):
        with pytest.raises(InvalidArgument, match=str(offset)):
            arena.unmap(offset)
    with pytest.raises(InvalidArgument):
        arena.map(0, Handle(0, G))
    assert arena.mapped_bytes == 2 * G
    assert readable_bytes(arena.base, arena.size) == 2 * G


def test_release_gives_memory_back_and_is_final(driver: Driver, arena: Arena) -> None:
    for offset in (0, 2 * G, 3 * G):
        arena.map(offset, driver.create(G))
    base = arena.base
    for _ in range(2):
        arena.release()
        assert (arena.mapped_bytes, arena.quarantined_bytes) == (0, 0)
        assert driver.held_bytes() == 0
        assert readable_bytes(base, arena.size) == 0
    handle = driver.create(G)
    with pytest.raises(InvalidArgument, match="released"):
        arena.map(0, handle)
    with pytest.raises(InvalidArgument):
        arena.unmap(0)
    driver.release(handle)


@host_only
def test_a_tensor_has_exactly_its_bytes(driver: Driver, arena: Arena) -> None:
    array = np.from_dlpack(arena.tensor(G + 3, 5000))  # before anything is mapped
    assert array.shape == (5000,) and array.dtype == np.int8 and array.nbytes == 5000
    assert array.ctypes.data == arena.base + G + 3
    assert arena.tensor(0, 1).__dlpack_device__() == (1, 0)
    arena.map(G, driver.create(G))
    assert not array.any()
    Subject(driver).write(arena.base + G, bytes([0, 0, 0, 1, 2, 3]))
    assert array[:4].tolist() == [1, 2, 3, 0]


def test_a_tensor_outside_the_arena_is_refused(arena: Arena) -> None:
    for offset, size in ((0, 8 * G + 1), (8 * G, 1), (0, 0), (1, 2**64 - 1), (2**64 - 1, 2)):
        with pytest.raises(InvalidArgument):
            arena.tensor(offset, size)


@host_only
def test_what_a_view_cannot_do_is_a_buffer_error(arena: Arena) -> None:
    view = arena.tensor(0, G)
    with pytest.raises(BufferError, match="copy"):
        view.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="device"):
        view.__dlpack__(dl_device=(2, 0))
    assert view.__dlpack__(None, copy=False, dl_device=(1, 0), max_version=(1, 0)) is not None


def still_reserved(base: int) -> bool:
    """Whether some mapping, accessible or not, covers the address."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            start, _, end = line.split(" ", 1)[0].partition("-")
            if int(start, 16) <= base < int(end, 16):
                return True
    return False


@host_only
def test_tensors_keep_the_range_and_the_memory(driver: Driver) -> None:
    arena = Arena.reserve(driver, 1 << 30)
    base = arena.base
    arena.map(0, driver.create(G))
    arrays = [np.from_dlpack(arena.tensor(0, G)), np.from_dlpack(arena.tensor(5, 10))]
    view = arrays[1][2:4]
    Subject(driver).write(base, b"\x01" * G)
    del arena
    gc.collect()
    assert arrays[0].sum() == G and driver.held_bytes() == G
    arrays.clear()
    gc.collect()
    assert view.tolist() == [1, 1] and driver.held_bytes() == G
    del view
    gc.collect()
    assert driver.held_bytes() == 0
    assert readable_bytes(base, G) == 0


def test_an_unused_capsule_lets_go(driver: Driver) -> None:
    arena = Arena.reserve(driver, G)
    arena.map(0, driver.create(G))
    capsule = arena.tensor(0, G).__dlpack__()
    del arena
    gc.collect()
    assert driver.held_bytes() == G
    del capsule
    gc.collect()
    assert driver.held_bytes() == 0


def test_the_driver_outlives_its_python_name() -> None:
    driver = HostDriver(G)
    arena = Arena.reserve(driver, G)
    arena.map(0, driver.create(G))
    array = np.from_dlpack(arena.tensor(0, G))
    del driver, arena
    gc.collect()
    assert not array.any()


@host_only
def test_the_last_tensor_may_die_on_another_thread(driver: Driver) -> None:
    arena = Arena.reserve(driver, G)
    arena.map(0, driver.create(G))
    letters: queue.Queue[object] = queue.Queue()
    letters.put(np.from_dlpack(arena.tensor(0, G)))
    del arena
    assert driver.held_bytes() == G
    thread = threading.Thread(target=letters.get)
    thread.start()
    thread.join(30)
    assert driver.held_bytes() == 0


def test_threads_share_an_arena(driver: Driver) -> None:
    arena = Arena.reserve(driver, 8 * G)
    errors: list[BaseException] = []

    def work(lane: int) -> None:
        try:
            for _ in range(50):
                arena.map(lane * G, driver.create(G))
                assert arena.is_mapped(lane * G)
                driver.release(arena.unmap(lane * G))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (arena.mapped_bytes, driver.held_bytes()) == (0, 0)


def test_whose_process_it_is_takes_no_system_call(driver: Driver, arena: Arena) -> None:
    counter = Counter()
    counter.mark()
    for offset in range(0, 8 * G, G):
        arena.map(offset, driver.create(G))
    for offset in range(0, 8 * G, G):
        driver.release(arena.unmap(offset))
    counter.mark()
    found = counter.stop()
    getpid, mmap = NUMBERS[os.uname().machine]
    assert found["marks"] == 2 and found["calls"][mmap] >= 8
    assert getpid not in found["calls"]


def test_a_forked_child_leaves_the_arena_alone() -> None:
    run_script("""
import gc, os
import numpy as np
from kvcached_core.vmm import Arena, HostDriver, InvalidArgument, readable_bytes

driver = HostDriver()
page = driver.granularity()
arena = Arena.reserve(driver, 4 * page)
arena.map(0, driver.create(page))
array = np.from_dlpack(arena.tensor(0, page))
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: arena.map(page, driver.create(page)),
        lambda: arena.unmap(0),
        lambda: arena.zero(0, page),
        lambda: arena.is_mapped(0),
        lambda: arena.tensor(0, page),
    ):
        try:
            call()
        except InvalidArgument:
            refused += 1
    readable = readable_bytes(arena.base, arena.size)
    arena.release()
    mapped = arena.mapped_bytes
    del arena, array, driver
    gc.collect()
    os._exit(0 if (refused, readable, mapped) == (5, 0, page) else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert arena.mapped_bytes == page and not array.any() and driver.held_bytes() == page
arena.release()
assert driver.held_bytes() == 0
""")


@pytest.mark.parametrize("keep", ["global", "cycle", "thread", "class"])
def test_the_interpreter_may_end_with_live_tensors(keep: str) -> None:
    out = run_script(f"""
import threading
import numpy as np
from kvcached_core.vmm import Arena, FaultyDriver, HostDriver

driver = FaultyDriver(HostDriver())
arena = Arena.reserve(driver, 1 << 20)
arena.map(0, driver.create(driver.granularity()))
array = np.from_dlpack(arena.tensor(0, driver.granularity()))
keep = {keep!r}
if keep == "cycle":
    cycle = [array, arena]
    cycle.append(cycle)
    del array, arena, driver, cycle
elif keep == "thread":
    started = threading.Event()
    def hold(kept):
        started.set()
        threading.Event().wait()
    threading.Thread(target=hold, args=((array, arena),), daemon=True).start()
    started.wait()
    del array, arena, driver
elif keep == "class":
    class Holder:
        kept = (array, arena)
        def __del__(self):
            self.kept = None
    holder = Holder()
    del array, arena, driver
print("ended")
""")
    assert out == "ended\n"
