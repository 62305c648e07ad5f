"""Drivers under test, and how to look at the memory behind their addresses.

Another kind of driver joins the contract suite with an entry in ``SUBJECTS``: a factory of
``Subject``, whose methods reach that driver's memory in its own way.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable

from kvcached_core.vmm import Driver, FaultyDriver, Handle, HostDriver, readable_bytes

KIB = 1024


class Subject:
    """A driver over host memory."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.granule = driver.granularity()

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def readable(self, address: int, size: int) -> int:
        """How many of the bytes can be read, found out without a fault."""
        return readable_bytes(address, size)

    def map_open(self, address: int, handle: Handle) -> None:
        self.driver.map(address, handle)
        self.driver.set_access(address, handle.size)

    def filled(self, address: int, granules: int, value: int) -> Handle:
        """A new handle, mapped at the address, accessible, every byte of it ``value``."""
        handle = self.driver.create(granules * self.granule)
        self.map_open(address, handle)
        self.write(address, bytes([value]) * handle.size)
        return handle


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "host-page": lambda: Subject(HostDriver()),
    "host-64KiB": lambda: Subject(HostDriver(64 * KIB)),
    "host-2MiB": lambda: Subject(HostDriver(2048 * KIB)),
    "faulty-host": lambda: Subject(FaultyDriver(HostDriver(64 * KIB))),
}


def run_script(script: str) -> str:
    """Runs a script in a process of its own, which must end with 0; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
