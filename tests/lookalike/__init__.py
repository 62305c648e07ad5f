"""Libraries that look like a vendor's, over host memory: built here, for tests without a device.

A ``Machine`` is a copy of such a library of its own: its devices, memory, counts and faults are
shared with nobody. The rules that it enforces are in machine.h.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvcached_core.vmm import CudaDriver, DeviceDriver, HipDriver

MIB = 1 << 20
_HERE = Path(__file__).parent
VENDORS = ("cuda", "hip")
_DRIVERS = {"cuda": CudaDriver, "hip": HipDriver}
_numbers = itertools.count()

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # modes of capture

# What the vendors call the calls that cost something. "visit" is what a thread of somebody else's
# is entered and left by, "switch" what is added where another device is current.
CALLS: dict[str, dict[str, str]] = {
    "cuda": {
        "reserve": "cuMemAddressReserve",
        "unreserve": "cuMemAddressFree",
        "create": "cuMemCreate",
        "release": "cuMemRelease",
        "map": "cuMemMap",
        "set_access": "cuMemSetAccess",
        "unmap": "cuMemUnmap",
        "zero": "cuMemsetD8Async",
        "free_bytes": "cuMemGetInfo_v2",
        "create_event": "cuEventCreate",
        "record": "cuEventRecord",
        "query": "cuEventQuery",
    },
    "hip": {
        "reserve": "hipMemAddressReserve",
        "unreserve": "hipMemAddressFree",
        "create": "hipMemCreate",
        "release": "hipMemRelease",
        "map": "hipMemMap",
        "set_access": "hipMemSetAccess",
        "unmap": "hipMemUnmap",
        "zero": "hipMemsetAsync",
        "free_bytes": "hipMemGetInfo",
        "create_event": "hipEventCreateWithFlags",
        "record": "hipEventRecord",
        "query": "hipEventQuery",
    },
}
VISIT: dict[str, dict[str, int]] = {
    "cuda": {"cuCtxGetCurrent": 1, "cuThreadExchangeStreamCaptureMode": 2},
    "hip": {"hipGetDevice": 1, "hipThreadExchangeStreamCaptureMode": 2},
}
SWITCH: dict[str, dict[str, int]] = {
    "cuda": {"cuCtxPushCurrent_v2": 1, "cuCtxPopCurrent_v2": 1},
    "hip": {"hipSetDevice": 2},
}


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="kvcached-lookalike-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _object(source: str) -> Path:
    out = _folder() / f"{source}.o"
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", "-o", out]
    subprocess.run([*command, _HERE / source], check=True)
    return out


@functools.cache
def _built(vendor: str) -> Path:
    out = _folder() / f"lib{vendor}.so"
    objects = [_object(name) for name in ("machine.cc", "controls.cc", f"fake_{vendor}.cc")]
    command = ["g++", "-shared", "-Wl,-Bsymbolic", "-o", out]
    subprocess.run([*command, *objects], check=True)
    return out


class Machine:
    """Two devices of that vendor in this process."""

    def __init__(
        self, vendor: str = "cuda", granularity: int = MIB // 16, memory: int = 8192 * MIB
    ):
        self.vendor = vendor
        self.calls = CALLS[vendor]
        self.path = str(_folder() / f"lib{vendor}-{next(_numbers)}.so")
        shutil.copyfile(_built(vendor), self.path)
        self.library = ctypes.CDLL(self.path)
        for name in ("stream", "last_stream"):
            getattr(self.library, f"lookalike_{name}").restype = ctypes.c_void_p
        for name in ("counts", "used", "violations"):
            getattr(self.library, f"lookalike_{name}").restype = ctypes.c_size_t
        self.library.lookalike_configure(ctypes.c_size_t(granularity), ctypes.c_size_t(memory))

    def driver(self, device: int = 1) -> DeviceDriver:
        return _DRIVERS[self.vendor](device, self.path)

    def current(self) -> int | None:
        """This thread's context or device, as the library knows it."""
        name = {"cuda": "cuCtxGetCurrent", "hip": "hipGetDevice"}[self.vendor]
        found = ctypes.c_void_p()
        assert getattr(self.library, name)(ctypes.byref(found)) == 0
        return found.value

    def make_current(self, device: int) -> None:
        """Of this thread, as its engine would."""
        if self.vendor == "hip":
            assert self.library.hipSetDevice(device) == 0
            return
        context = ctypes.c_void_p()
        assert self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.library.cuCtxSetCurrent(context) == 0

    def exchange_mode(self, mode: int) -> int:
        """Sets this thread's mode of capture; returns the one before."""
        prefix = {"cuda": "cu", "hip": "hip"}[self.vendor]
        found = ctypes.c_int(mode)
        call = getattr(self.library, f"{prefix}ThreadExchangeStreamCaptureMode")
        assert call(ctypes.byref(found)) == 0
        return found.value

    def begin_capture(self, mode: int = GLOBAL) -> None:
        name = {"cuda": "cuStreamBeginCapture_v2", "hip": "hipStreamBeginCapture"}[self.vendor]
        assert getattr(self.library, name)(None, mode) == 0

    def end_capture(self) -> int:
        """The status: 0, or 901 if somebody spoiled the capture."""
        name = {"cuda": "cuStreamEndCapture", "hip": "hipStreamEndCapture"}[self.vendor]
        status: int = getattr(self.library, name)(None, None)
        return status

    def counts(self) -> dict[str, int]:
        """Calls so far by the library's own names."""
        out = ctypes.create_string_buffer(1 << 16)
        assert self.library.lookalike_counts(out, ctypes.c_size_t(len(out))) <= len(out)
        pairs = (line.split() for line in out.value.decode().splitlines())
        return {name: int(count) for name, count in pairs}

    def calls_since(self, before: dict[str, int]) -> dict[str, int]:
        now = self.counts()
        return {name: n - before.get(name, 0) for name, n in now.items() if n > before.get(name, 0)}

    def fail(self, name: str, status: int, n: int = 1) -> None:
        """The n-th call of that name from now on returns the status and does nothing."""
        self.library.lookalike_fail(name.encode(), ctypes.c_uint64(n), status)

    @contextmanager
    def blocked(self, name: str) -> Iterator[None]:
        """One call of that name waits meanwhile, before it has any effect."""
        self.library.lookalike_block(name.encode())
        try:
            yield
        finally:
            self.library.lookalike_block(b"")

    def waiting(self) -> int:
        """Calls that wait now."""
        return int(self.library.lookalike_waiting())

    def lose(self, status: int) -> None:
        """Every call returns the status from now on."""
        self.library.lookalike_lose(status)

    def stream(self, blocking: bool = True) -> int:
        found: int = self.library.lookalike_stream(blocking)
        return found

    def last_stream(self) -> int:
        """The last one made: the driver's own, if nobody made one since."""
        found: int = self.library.lookalike_last_stream()
        return found

    def hold(self, stream: int, held: bool = True) -> None:
        """Work on the stream waits until it is let go."""
        self.library.lookalike_hold(ctypes.c_void_p(stream), held)

    def touch(self, stream: int, address: int, size: int) -> None:
        """Queues work that needs the range: where it has no memory then, the device is lost."""
        self.library.lookalike_touch(
            ctypes.c_void_p(stream), ctypes.c_size_t(address), ctypes.c_size_t(size)
        )

    def violations(self) -> int:
        """How often a range was mapped, unmapped or given back that queued work was to touch."""
        return int(self.library.lookalike_violations())

    def used(self) -> int:
        """Bytes of memory, of all drivers."""
        return int(self.library.lookalike_used())

    def leftovers(self) -> tuple[int, int, int]:
        """How many contexts are retained, and streams and events alive."""
        found = self.library
        retained = sum(found.lookalike_retained(device) for device in (0, 1))
        return retained, found.lookalike_live_streams(), found.lookalike_live_events()


@functools.cache
def shared_machine(vendor: str, granularity: int) -> Machine:
    """For tests that neither count nor break anything."""
    return Machine(vendor, granularity)
