"""A rank with a budget and a segment of its own over a device, and what is compiled beside it."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kvcached_core.budget import Budget, Rank, Segment
from kvcached_core.vmm import Arena, CudaDriver, DeviceDriver

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
LIBRARY = "libcuda.so.1"
PATIENCE_MS = 60_000
LOOK_S = 50e-6


def compile_shared(folder: Path, name: str, *more: str) -> Path:
    """The program beside this file as a shared library."""
    out = folder / f"{name}.so"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(CSRC), "-o", str(out)]
    subprocess.run([*command, str(HERE / f"{name}.cc"), *more], check=True)
    return out


def without_zeroing(folder: Path, library: str = LIBRARY) -> str:
    """A library like `library` that zeroes nothing."""
    return str(compile_shared(folder, "no_zero", "-Wl,--no-as-needed", _path(library)))


def timed_calls(folder: Path, library: str = LIBRARY) -> tuple[str, Callable[[], float]]:
    """A library like `library` that zeroes nothing, and a question: seconds spent in its create,
    map and set access since the last one."""
    words = [f'-DLIBRARY="{_path(library)}"', "-ldl", "-Wl,--no-as-needed", _path(library)]
    made = compile_shared(folder, "timed_calls", *words)
    question = ctypes.CDLL(str(made)).timed_calls
    question.restype = ctypes.c_double
    return str(made), question


def _path(library: str) -> str:
    """Of the file behind a library's name."""
    ctypes.CDLL(library)
    name = Path(library).name.partition(".so")[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[1] + line.partition("/")[2]
        if Path(path).name.startswith(f"{name}.so"):
            return path
    raise RuntimeError(f"{library} is loaded from no file")


class Bare:
    """The loop of bare_loop.cc over one device."""

    def __init__(self, folder: Path, device: int, library: str = LIBRARY) -> None:
        sources = [str(CSRC / "vmm" / name) for name in ("cuda_library.cc", "shared_library.cc")]
        self._made = ctypes.CDLL(str(compile_shared(folder, "bare_loop", *sources, "-ldl")))
        self._check(self._made.bare_open(library.encode(), device))

    def __call__(self, page: int, pages: int, zeroes: bool) -> tuple[float, float]:
        """Seconds to take and to give back `pages` pages of `page` bytes."""
        seconds = (ctypes.c_double * 2)()
        size = ctypes.c_size_t
        self._check(self._made.bare_loop(size(page), size(pages), int(zeroes), seconds))
        return seconds[0], seconds[1]

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"the bare loop failed: status {status} of the device's library")


class Rig:
    """`pages` pages of `page` bytes that can be taken, beside the null page, by one rank. It keeps
    its pace only where `paced`."""

    def __init__(
        self, folder: Path, page: int, pages: int, driver: DeviceDriver, *, paced: bool
    ) -> None:
        folder.mkdir(mode=0o700)
        self.page, self.pages = page, list(range(1, pages + 1))
        self.driver = driver
        self.segment = Segment.create(str(folder / "rig.segment"), pages + 1, 1)
        budget = Budget.open(str(folder), "bench", page * (pages + 1), 0)
        row = budget.join("bench", 0, page * (pages + 1))
        arena = Arena.reserve(driver, page * (pages + 1))
        extents = [(arena, page)]
        pace = {} if paced else {"pace": (1e30, 1e30)}
        self.rank = Rank(self.segment, 0, budget, "bench", row, driver, extents, **pace)
        self._epoch = 0

    def take(self) -> float:
        """Seconds until all pages that were asked for at once are mapped."""
        wanted = self.rank.mapped_bytes + self.page * len(self.pages)
        begin = time.perf_counter()
        self.segment.request(self.pages)
        while self.rank.mapped_bytes < wanted:
            time.sleep(LOOK_S)
            if failure := self.segment.failure():
                raise RuntimeError(failure)
        seconds = time.perf_counter() - begin
        self.settle(len(self.pages))
        return seconds

    def settle(self, count: int) -> None:
        """Waits until so many pages that were asked for are owned."""
        seen = self.segment.progress()
        owned, refused, _ = self.segment.poll()
        count -= len(owned)
        while count and not refused and not self.segment.failure():
            seen = self.segment.wait_progress(seen, 100)
            owned, refused, _ = self.segment.poll()
            count -= len(owned)
        if count:
            raise RuntimeError(self.segment.failure() or f"{count} pages were refused")

    def give_back(self) -> float:
        """Seconds until all pages are unmapped and released."""
        begin = time.perf_counter()
        self.retire(self.pages)
        self.drain()
        return time.perf_counter() - begin

    def retire(self, pages: list[int]) -> None:
        self._epoch += 1
        self.rank.retire(pages, self._epoch)

    def drain(self) -> None:
        if not self.rank.drain(PATIENCE_MS):
            raise RuntimeError(self.segment.failure() or "pages were not released in time")

    def await_pages(self, counter: str, pages: int) -> None:
        """Waits until that counter of the rank is so many."""
        while self.rank.counters()[counter] < pages:
            time.sleep(LOOK_S)
            if failure := self.segment.failure():
                raise RuntimeError(failure)

    def close(self) -> None:
        self.rank.close()


def open_driver(device: int, library: str) -> DeviceDriver:
    return CudaDriver(device, library)
