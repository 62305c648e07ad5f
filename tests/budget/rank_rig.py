"""One engine's ranks and its scheduler half in this process, and what must hold between them.

As a program, `rank_rig.py DIRECTORY SEED`: an engine that grows and shrinks until it is killed.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcached_core.budget import Budget, Grant, Rank, RowInfo, Segment
from kvcached_core.vmm import Arena, DriverError, FaultyDriver, HostDriver

DEVICE = "host:rank"
PLENTY = 1 << 60  # free bytes of the device: not what limits here
GRANULE = 64 * 1024
EXTENTS = (GRANULE, 2 * GRANULE)  # of one page, a tensor each
PAGE = sum(EXTENTS)
# Only a guard against a hang.
PATIENCE_S = 30

# Where the segment's words lie in its file: see csrc/budget/segment.h.
DOORBELL_AT, GROW_HEAD_AT = 64, 68
RING_AT = 192
GROW_DONE_IN_PART = 128
FAILED_IN_PART, FAILURE_IN_PART = 160, 164


def eventually(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.001)


def word(path: str, at: int) -> int:
    with Path(path).open("rb") as file:
        file.seek(at)
        found: int = struct.unpack("I", file.read(4))[0]
        return found


def set_word(path: str, at: int, value: int) -> None:
    with Path(path).open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("I", value))


def check_all_is_free(directory: Path, name: str) -> None:
    """A newcomer of that name gets the whole capacity, and nobody else is there."""
    budget = Budget.open(str(directory), DEVICE, 0, 0)
    row = budget.join(name, 0, budget.capacity())
    assert budget.lease(row, budget.capacity(), PLENTY, 1000) == Grant.GRANTED
    budget.unlease(row, budget.capacity())
    budget.leave(row)
    assert budget.rows() == []


@dataclass
class Member:
    """A rank with its driver and arenas."""

    number: int
    row: int
    budget: Budget
    driver: FaultyDriver
    arenas: list[Arena]
    rank: Rank
    extents: tuple[int, ...]

    def info(self) -> RowInfo:
        (mine,) = (row for row in self.budget.rows() if row.rank == self.number)
        return mine

    def held(self) -> int:
        """Bytes held, when lease, record and driver agree on it, which they must."""
        info = self.info()
        held = self.driver.held_bytes()
        assert (info.lease, info.created) == (held, held)
        return held

    def pages_held(self) -> int:
        pages, rest = divmod(self.held(), PAGE)
        assert rest == 0, f"{rest} bytes beside {pages} pages"
        return pages

    def fill(self, page: int, value: int) -> None:
        for address, size in self.ranges(page):
            ctypes.memset(address, value, size)

    def is_filled(self, page: int, value: int) -> bool:
        return all(
            ctypes.string_at(address, size) == bytes([value]) * size
            for address, size in self.ranges(page)
        )

    def is_zero(self, page: int) -> bool:
        return self.is_filled(page, 0)

    def ranges(self, page: int) -> list[tuple[int, int]]:
        """Address and bytes of the page in each tensor."""
        pieces = zip(self.arenas, self.extents, strict=True)
        return [(arena.base + page * size, size) for arena, size in pieces]

    def is_mapped(self, page: int) -> bool:
        pieces = zip(self.arenas, self.extents, strict=True)
        return all(arena.is_mapped(page * size) for arena, size in pieces)


class Rig:
    """A budget of `capacity` times PAGE bytes and an engine of `pages` pages on it."""

    def __init__(
        self,
        directory: Path,
        pages: int = 8,
        ranks: int = 1,
        capacity: int = 100,
        extents: tuple[int, ...] = EXTENTS,
    ) -> None:
        self.capacity = capacity * PAGE
        self.extents = extents
        self.pages = pages
        self.budget = Budget.open(str(directory), DEVICE, self.capacity, 0)
        self.path = str(directory / "engine.segment")
        self.segment = Segment.create(self.path, pages, ranks)
        self.members: list[Member] = []
        self.epoch = 0

    def arenas(self, driver: FaultyDriver) -> list[Arena]:
        return [Arena.reserve(driver, self.pages * size) for size in self.extents]

    def join(
        self, driver: FaultyDriver | None = None, name: str = "engine", **terms: int
    ) -> Member:
        driver = driver or FaultyDriver(HostDriver(GRANULE))
        number = len(self.members)
        arenas = self.arenas(driver)
        row = self.budget.join(name, number, self.capacity)
        extents = list(zip(arenas, self.extents, strict=True))
        try:
            rank = Rank(self.segment, number, self.budget, DEVICE, row, driver, extents, **terms)
        except BaseException:
            self.budget.leave(row)
            raise
        self.members.append(Member(number, row, self.budget, driver, arenas, rank, self.extents))
        return self.members[-1]

    def grow(self, *pages: int) -> tuple[list[int], list[int], list[int]]:
        """Asks for pages; owned, refused and partial when all are resolved."""
        self.segment.request(pages)
        answers: tuple[list[int], list[int], list[int]] = ([], [], [])

        def resolved() -> bool:
            assert not self.segment.failure()
            for answer, more in zip(answers, self.segment.poll(), strict=True):
                answer.extend(more)
            return self.segment.outstanding() == 0

        eventually(resolved, f"{pages} resolved")
        return answers

    def retire(self, pages: Sequence[int]) -> None:
        """Retires pages on all ranks and waits until that is done."""
        self.epoch += 1
        for member in self.members:
            member.rank.retire(pages, self.epoch)
        for member in self.members:
            assert member.rank.drain(PATIENCE_S * 1000)
        assert self.segment.released_epoch() == self.epoch

    def doorbell(self) -> int:
        return word(self.path, DOORBELL_AT)

    def close(self) -> None:
        for member in self.members:
            member.driver.reset()
            member.rank.close()


@contextmanager
def rig(directory: Path, **shape: Any) -> Iterator[Rig]:
    """A rig that must have given everything back when it is closed."""
    made = Rig(directory, **shape)
    try:
        yield made
    finally:
        made.close()
    assert [member.driver.held_bytes() for member in made.members] == [0] * len(made.members)
    assert made.budget.rows() == []


def churn(directory: str, seed: str) -> None:
    rng = random.Random(seed)
    made = Rig(Path(directory), capacity=6)
    member = made.join(name=f"churn-{seed}")
    print("ready", flush=True)
    owned: list[int] = []
    while True:
        virtual = sorted({*range(1, made.pages)} - {*owned})
        owned += made.grow(*rng.sample(virtual, rng.randint(0, len(virtual))))[0]
        try:
            member.rank.make_ready(owned)
        except DriverError as error:
            sys.exit(str(error))
        gone = rng.sample(owned, rng.randint(0, len(owned)))
        made.retire(gone)
        owned = [page for page in owned if page not in gone]


if __name__ == "__main__":
    churn(*sys.argv[1:])
