"""Drivers under test, and how to look at the memory behind their addresses.

Another kind of driver joins the contract suite with an entry in ``SUBJECTS``: a factory of
``Subject``, whose methods reach that driver's memory in its own way.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

from kvcached_core.vmm import Driver, FaultyDriver, Handle, HostDriver, probe, readable_bytes
from lookalike import VENDORS, shared_machine

KIB = 1024
MIB = 1024 * KIB

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Subject:
    """A driver over memory that the host can reach: its own, or a look-alike's."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.granule = driver.granularity()
        # Every machine page where that is quick, else 16 places of each granule.
        self.grain = mmap.PAGESIZE if self.granule <= MIB else self.granule // 16

    @property
    def is_large(self) -> bool:
        """Whether a test should take few granules and few turns."""
        return self.granule > 2 * MIB

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def fill(self, address: int, size: int, value: int) -> None:
        ctypes.memset(address, value, size)

    def is_filled(self, address: int, size: int, value: int) -> bool:
        """Whether every byte is ``value``; copies nothing."""
        return self.read(address, 1)[0] == value and _memcmp(address, address + 1, size - 1) == 0

    def readable(self, address: int, size: int) -> int:
        """How many of the bytes can be read, in whole grains, found out without a fault."""
        starts = range(address, address + size, self.grain)
        if self.grain == mmap.PAGESIZE:
            return readable_bytes(address, size)
        return self.grain * sum(probe(start, 1) for start in starts)

    def map_open(self, address: int, handle: Handle) -> None:
        self.driver.map(address, handle)
        self.driver.set_access(address, handle.size)

    def map_zeroed(self, address: int, handle: Handle) -> None:
        """As map_open(); new memory reads as zero, which some drivers see to themselves."""
        self.map_open(address, handle)
        if not self.driver.creates_zeroed():
            self.driver.zero(address, handle.size)
            self.driver.finish()

    def filled(self, address: int, granules: int, value: int) -> Handle:
        """A new handle, mapped at the address, accessible, every byte of it ``value``."""
        handle = self.driver.create(granules * self.granule)
        self.map_open(address, handle)
        self.fill(address, handle.size, value)
        return handle


KINDS = ("host", *VENDORS)


def make_driver(kind: str, granule: int) -> Driver:
    """Of one of ``KINDS``, over memory that the host can reach."""
    return HostDriver(granule) if kind == "host" else shared_machine(kind, granule).driver()


def _lookalike(vendor: str, granule: int) -> Subject:
    return Subject(make_driver(vendor, granule))


def _faulty_lookalike(vendor: str) -> Subject:
    return Subject(FaultyDriver(make_driver(vendor, 64 * KIB)))


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "host-page": lambda: Subject(HostDriver()),
    "host-64KiB": lambda: Subject(HostDriver(64 * KIB)),
    "host-2MiB": lambda: Subject(HostDriver(2 * MIB)),
    "host-4MiB": lambda: Subject(HostDriver(4 * MIB)),
    "host-64MiB": lambda: Subject(HostDriver(64 * MIB)),
    "faulty-page": lambda: Subject(FaultyDriver(HostDriver())),
    "faulty-64KiB": lambda: Subject(FaultyDriver(HostDriver(64 * KIB))),
    "faulty-2MiB": lambda: Subject(FaultyDriver(HostDriver(2 * MIB))),
    **{
        f"{vendor}-{name}": partial(_lookalike, vendor, granule)
        for vendor in VENDORS
        for name, granule in (("64KiB", 64 * KIB), ("2MiB", 2 * MIB))
    },
    **{f"faulty-{vendor}": partial(_faulty_lookalike, vendor) for vendor in VENDORS},
}


# Long enough that a waiting call is seen to wait, also on a busy machine.
WAIT_US = 1_000_000
DEADLINE = 30  # seconds; only guards against a hang


def wait_for_call(driver: FaultyDriver, kind: str, count: int) -> None:
    """Returns while that call waits in the driver; it gets there only if this thread may run."""
    tick = threading.Event()
    for _ in range(DEADLINE * 1000):
        if driver.counts()[kind] >= count:
            return
        tick.wait(0.001)
    raise AssertionError(f"no {kind} call within {DEADLINE} s: {driver.counts()}")


def run_script(script: str) -> str:
    """Runs a script in a process of its own, which must end with 0; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
