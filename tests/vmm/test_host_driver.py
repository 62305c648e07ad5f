"""What is true of the host driver alone: its memfd, its mappings, what its machine says."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from kvcached_core.vmm import DriverError, HostDriver, InvalidArgument, machine_free_bytes

from .subject import KIB, Subject, run_script

PAGE = HostDriver().granularity()


def memfds() -> set[Path]:
    """The descriptors of live drivers; those of earlier tests' leftovers are gone before."""
    gc.collect()
    links = (Path("/proc/self/fd")).iterdir()
    return {fd for fd in links if fd.is_symlink() and "memfd:kvcached" in str(fd.readlink())}


@pytest.mark.parametrize("granularity", [1, PAGE // 2, PAGE + 1, 3 * PAGE, 1 << 63])
def test_a_wrong_granularity_is_refused_by_value(granularity: int) -> None:
    with pytest.raises(InvalidArgument, match=str(granularity)):
        HostDriver(granularity)


def test_the_file_does_not_grow_under_steady_use() -> None:
    before = memfds()
    driver = HostDriver()
    (fd,) = memfds() - before
    dice = random.Random(7)
    alive = [driver.create(PAGE * dice.randint(1, 16)) for _ in range(32)]
    for _ in range(2000):
        driver.release(alive.pop(dice.randrange(len(alive))))
        alive.append(driver.create(PAGE * dice.randint(1, 16)))
    # 32 handles of at most 16 pages: within twice their largest sum, not 2000 handles' sum.
    assert fd.stat().st_size <= 2 * 32 * 16 * PAGE
    assert driver.held_bytes() == sum(handle.size for handle in alive)


@pytest.mark.parametrize("order", [1, -1])
def test_freed_neighbours_in_the_file_are_joined(order: int) -> None:
    before = memfds()
    driver = HostDriver()
    (fd,) = memfds() - before
    handles = [driver.create(PAGE) for _ in range(10)]
    stopper = driver.create(PAGE)
    for handle in handles[::order]:
        driver.release(handle)
    driver.create(10 * PAGE)
    assert fd.stat().st_size == 11 * PAGE
    assert driver.held_bytes() == 10 * PAGE + stopper.size


def test_the_end_of_a_driver_gives_everything_back() -> None:
    before = memfds()
    driver = HostDriver(64 * KIB)
    subject = Subject(driver)
    base = driver.reserve(1 << 20)
    subject.filled(base, 4, 9)
    assert len(memfds() - before) == 1
    del driver, subject
    assert memfds() == before
    maps = Path("/proc/self/maps").read_text()
    assert not any(line.startswith(f"{base:x}-") for line in maps.splitlines())


def test_a_forked_child_has_no_memory_and_no_effect() -> None:
    script = """
import gc, os
from pathlib import Path
from kvcached_core.vmm import Handle, HostDriver, InvalidArgument, readable_bytes
from vmm.subject import Subject

driver = HostDriver()
granule = driver.granularity()
subject = Subject(driver)
base = driver.reserve(4 * granule)
handle = subject.filled(base, 2, 7)
loose = driver.create(granule)
child = os.fork()
if child == 0:
    calls = [
        lambda: driver.reserve(granule),
        lambda: driver.unreserve(base, 4 * granule),
        lambda: driver.create(granule),
        lambda: driver.release(loose),
        lambda: driver.map(base + 2 * granule, loose),
        lambda: driver.set_access(base, 2 * granule),
        lambda: driver.unmap(base, 2 * granule),
        lambda: driver.zero(base, 2 * granule),
        lambda: driver.held_bytes(),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except InvalidArgument as error:
            refused += str(os.getpid()) in str(error)
    links = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    open_ = sum("memfd:kvcached" in link for link in links)
    readable = readable_bytes(base, 4 * granule)
    mine = HostDriver()  # the child may have a driver of its own
    own = mine.create(granule).size == granule and mine.held_bytes() == granule
    del driver, subject, mine
    gc.collect()
    os._exit(0 if (refused, open_, readable, own) == (len(calls), 0, 0, True) else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert subject.read(base, 2 * granule) == bytes([7]) * 2 * granule
assert driver.held_bytes() == 3 * granule
driver.unmap(base, 2 * granule)
driver.release(handle)
driver.release(loose)
assert driver.held_bytes() == 0
"""
    tests = Path(__file__).parents[1]
    run_script(f"import sys; sys.path.insert(0, {str(tests)!r})\n{script}")


def test_too_many_mappings_are_an_error_that_names_the_limit() -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 1 << 21:
        pytest.skip(f"vm.max_map_count is {limit}: its mappings alone would take gigabytes")
    run_script(f"limit = {limit}" + MAPPINGS_SCRIPT)


# All but some of the mappings are spent on every second page of a bare range, made accessible.
# Then the same with an arena's pages, which cannot be joined either, until the kernel says no.
# The interpreter needs memory of its own there, where no mmap succeeds: gaps made beforehand.
MAPPINGS_SCRIPT = """
import ctypes
from kvcached_core.vmm import Arena, DriverError, HostDriver, InvalidArgument, OutOfMemory
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
driver = HostDriver()
page = driver.granularity()
spare = 1000
bare = driver.reserve(limit * page)
for i in range((limit - spare) // 2):
    assert libc.mprotect(bare + 2 * i * page, page, 1) == 0, ctypes.get_errno()
arena = Arena.reserve(driver, 2 * spare * page)
handles = [driver.create(page) for _ in range(spare)]
gaps = [bytes(i % 480) for i in range(100_000)]
del gaps[::2]
mapped = 0
try:
    for i, handle in enumerate(handles):
        arena.map(2 * i * page, handle)
        mapped += 1
    raise SystemExit("the limit was never met")
except DriverError as error:
    assert "vm.max_map_count" in str(error), error
    assert not isinstance(error, (InvalidArgument, OutOfMemory)), type(error)
assert arena.mapped_bytes == mapped * page
assert not arena.is_mapped(2 * mapped * page)
for handle in handles[mapped:]:
    driver.release(handle)
arena.release()
assert (arena.mapped_bytes, arena.quarantined_bytes, driver.held_bytes()) == (0, 0, 0)
"""

MIB = 1 << 20


def fake_proc(root: Path, available_kib: int, cgroup: str, mounts: list[str]) -> str:
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(
        f"MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_kib} kB\n"
    )
    (root / "self" / "cgroup").write_text(cgroup)
    (root / "self" / "mountinfo").write_text("".join(f"{mount}\n" for mount in mounts))
    return str(root)


def v2_group(path: Path, limit: str, usage: int, inactive_file: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{usage}\n")
    (path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def v1_group(path: Path, limit: int, usage: int, inactive_file: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (path / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (path / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive_file}\n")


def test_no_cgroup_means_what_the_machine_has(tmp_path: Path) -> None:
    assert machine_free_bytes(fake_proc(tmp_path / "proc", 3 * KIB, "", [])) == 3 * MIB


@pytest.mark.parametrize(
    ("own", "parent", "expected"),
    [
        (("max", 7 * MIB), ("max", 9 * MIB), 100 * MIB),
        ((f"{10 * MIB}", 7 * MIB), ("max", 9 * MIB), 3 * MIB),
        ((f"{10 * MIB}", 7 * MIB), (f"{12 * MIB}", 11 * MIB), 1 * MIB),
        ((f"{10 * MIB}", 11 * MIB), ("max", 11 * MIB), 0),
    ],
)
def test_the_tightest_cgroup_on_the_way_up_counts(
    tmp_path: Path, own: tuple[str, int], parent: tuple[str, int], expected: int
) -> None:
    top = tmp_path / "cg"
    v2_group(top / "a" / "b", *own)
    v2_group(top / "a", *parent)
    mounts = [f"31 23 0:28 / {top} rw,relatime - cgroup2 cgroup2 rw"]
    proc = fake_proc(tmp_path / "proc", 100 * KIB, "0::/a/b\n", mounts)
    assert machine_free_bytes(proc) == expected


def test_file_cache_that_can_be_dropped_is_free(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    v2_group(top, f"{10 * MIB}", 9 * MIB, inactive_file=4 * MIB)
    mounts = [f"31 23 0:28 / {top} rw,relatime - cgroup2 cgroup2 rw"]
    proc = fake_proc(tmp_path / "proc", 100 * KIB, "0::/\n", mounts)
    assert machine_free_bytes(proc) == 5 * MIB


def test_version_1_inside_a_container(tmp_path: Path) -> None:
    """The container's own cgroup is what is mounted; its name is not below the mount."""
    top = tmp_path / "cg"
    v1_group(top, 10 * MIB, 8 * MIB, 1 * MIB)
    mounts = [
        "30 23 0:27 / /elsewhere rw,relatime - cgroup cgroup rw,cpu",
        f"31 23 0:28 /docker/c1 {top} rw,relatime - cgroup cgroup rw,memory",
    ]
    proc = fake_proc(tmp_path / "proc", 100 * KIB, "4:memory:/docker/c1\n0::/\n", mounts)
    assert machine_free_bytes(proc) == 3 * MIB


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    v1_group(top, 9223372036854771712, 8 * MIB, 0)
    mounts = [f"31 23 0:28 / {top} rw,relatime - cgroup cgroup rw,memory"]
    proc = fake_proc(tmp_path / "proc", 100 * KIB, "4:memory:/\n", mounts)
    assert machine_free_bytes(proc) == 100 * MIB


def test_a_machine_that_does_not_say_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="MemAvailable"):
        machine_free_bytes(str(tmp_path))
