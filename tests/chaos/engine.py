"""A small engine without a model: pool, budget and host memory in one process.

It does what the engines' halves do, one call at a time: hands blocks out of pages that its rank
owns, writes a stamp into each, and finds it again when the block comes back.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from ctypes import memmove, string_at
from dataclasses import dataclass, field
from pathlib import Path

from kvcached_core.budget import Budget, Rank, RowInfo, Segment
from kvcached_core.pool import GrowthPolicy, Ledger
from kvcached_core.vmm import Arena, FaultyDriver, HostDriver

DEVICE = "host:chaos"
GRANULE = 4096
EXTENTS = (GRANULE, 2 * GRANULE)  # of one page, a tensor each
PAGE = sum(EXTENTS)
BLOCKS_PER_PAGE = 4
PAGE_STATES = ("virtual", "preparing", "owned", "retiring", "quarantined")
# Only a guard against a hang.
PATIENCE_S = 60


def eventually(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.0001)


@dataclass
class Engine:
    """`held` maps each block that a request has to its stamp; `cached` the same for a prefix."""

    budget: Budget
    segment: Segment
    name: str
    pages: int
    limit: int
    floor: int = 0
    careful: bool = False  # never lets the rank's thread and a step race for a fault
    driver: FaultyDriver = field(default_factory=lambda: FaultyDriver(HostDriver(GRANULE)))
    held: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    stamps: int = 0
    tried_ahead: int = 0

    def __post_init__(self) -> None:
        """Raises what Budget.join, Arena.reserve and Rank raise; then nothing is held."""
        self.ledger = Ledger(self.pages * BLOCKS_PER_PAGE, BLOCKS_PER_PAGE)
        self.policy = GrowthPolicy(1, 2)
        self.retiring: list[tuple[int, list[int], list[int]]] = []
        self.aborting: list[int] = []
        self.unready: set[int] = set()
        self.row = self.budget.join(self.name, 0, self.limit, self.floor)
        try:
            self.arenas = [Arena.reserve(self.driver, self.pages * size) for size in EXTENTS]
            extents = list(zip(self.arenas, EXTENTS, strict=True))
            self.rank = Rank(self.segment, 0, self.budget, DEVICE, self.row, self.driver, extents)
        except BaseException:
            self.budget.leave(self.row)
            raise

    # --- blocks ---

    def hand_out(self, count: int) -> list[int] | None:
        """`count` blocks, stamped, or None for "not now". Raises DriverError if mapping fails."""
        short = -((self.ledger.available() - count) // BLOCKS_PER_PAGE)
        if short > 0:
            self.grow(short)
        if self.ledger.available() < count:
            self.segment.set_wish(max(1, short))
            return None
        self.segment.set_wish(0)
        blocks = self.ledger.pop(count)
        for block in blocks:
            assert block not in self.held, f"block {block} is handed out twice"
            self.cached.pop(block, None)
            self.held[block] = 0
        self.go_on()
        return blocks

    def go_on(self) -> None:
        """Makes ready and stamps what was handed out; again after a DriverError."""
        self.unready |= {*self.ledger.take_first_used()}
        self.rank.make_ready(sorted(self.unready))
        self.unready.clear()
        for block in [block for block, stamp in self.held.items() if stamp == 0]:
            self.stamps += 1
            self.held[block] = self.stamps
            self._write(block, self.stamps)

    def take_back(self, blocks: Iterable[int], cache: bool) -> None:
        blocks = list(blocks)
        for block in blocks:
            stamp = self.held.pop(block)
            self._check(block, stamp)
            if cache:
                self.cached[block] = stamp
        (self.ledger.push_cached if cache else self.ledger.push_free)(blocks)

    def hit(self, block: int) -> None:
        """A request finds its prefix."""
        self.ledger.take(block)
        self.held[block] = self.cached.pop(block)
        self._check(block, self.held[block])

    def check_stamps(self) -> None:
        for block, stamp in (self.held | self.cached).items():
            self._check(block, stamp)

    # --- pages ---

    def grow(self, short: int) -> None:
        """Asks for `short` pages and the reserve, and waits for the answers."""
        outstanding = self.segment.outstanding()
        wanted = self.policy.pages_to_grow(self.ledger.empty_pages(), outstanding, short)
        pages = self.ledger.plan_growth(min(wanted, self.ledger.pages("virtual")))
        self.segment.request(pages)
        while self.segment.outstanding():
            seen = self.segment.progress()
            self.settle()
            if self.segment.outstanding():
                self.segment.wait_progress(seen, 1000)
        if self.careful:
            self.quiet()

    def shrink(self, pages: int) -> None:
        """Gives up to so many pages back, cached ones too."""
        lacking = pages - self.ledger.empty_pages()
        if lacking > 0:
            victims = self.ledger.victims_for_pages(lacking)
            self.ledger.uncache(victims)
            for block in victims:
                del self.cached[block]
        self.retire(self.ledger.retire_empty(pages))

    def shrink_for_others(self) -> None:
        target = -(-self.budget.reclaim_target(self.row) // PAGE)
        above_floor = self.ledger.pages("owned") - -(-self.floor // PAGE)
        self.shrink(max(0, min(target - self.ledger.pages("retiring"), above_floor)))

    def retire(self, pages: list[int]) -> None:
        aborted, self.aborting = self.aborting, []
        if not pages and not aborted:
            return
        self.epoch += 1
        self.retiring.append((self.epoch, pages, aborted))
        self.segment.record(pages, "owned", "retiring", self.epoch)
        self.segment.record(aborted, "preparing", "retiring", self.epoch)
        self.rank.retire([*pages, *aborted], self.epoch)

    def publish(self) -> None:
        self.segment.set_idle(self.ledger.empty_pages() + self.ledger.cached_only_pages())

    def settle(self) -> None:
        """Takes in what the rank has done."""
        owned, refused, partial = self.segment.poll()
        self.tried_ahead += len(owned)
        self.ledger.grown(owned)
        self.ledger.growth_failed(refused)
        self.aborting += partial
        released = self.segment.released_epoch()
        while self.retiring and self.retiring[0][0] <= released:
            epoch, pages, aborted = self.retiring.pop(0)
            lost = [page for page in (*pages, *aborted) if self.segment.is_quarantined(page)]
            gone = [page for page in pages if page not in lost]
            failed = [page for page in aborted if page not in lost]
            self.ledger.quarantine(lost)
            self.ledger.released(gone)
            self.ledger.growth_failed(failed)
            self.segment.record(lost, "retiring", "quarantined", epoch)
            self.segment.record(gone + failed, "retiring", "virtual", epoch)
        assert not self.segment.failure(), self.segment.failure()

    # --- what must hold ---

    def quiet(self) -> None:
        """Waits until the rank has nothing to do, but for pages that it maps ahead.

        A careful engine waits for these too: each was tried once.
        """
        self.settle()
        self.retire([])
        tried = self.rank.counters
        if self.careful:
            eventually(lambda: tried()["mapped_ahead"] >= self.tried_ahead, "mapped ahead")
        for _ in range(2):  # the second turn begins when the first is over, and sees the wish
            self.rank.retire([], self.epoch)
            assert self.rank.drain(PATIENCE_S * 1000)
        self.settle()
        assert not self.retiring and not self.aborting

    def info(self) -> RowInfo:
        (mine,) = (row for row in self.budget.rows() if row.instance == self.name)
        return mine

    def check(self) -> None:
        """Conservation, while quiet: of blocks, of pages, of bytes."""
        ledger = self.ledger
        ledger.check_integrity()
        counts = {state: ledger.pages(state) for state in PAGE_STATES}
        assert sum(counts.values()) == self.pages, counts
        assert counts["preparing"] == counts["retiring"] == 0, counts
        assert (ledger.num_used(), ledger.num_cached()) == (len(self.held), len(self.cached))
        blocks = 1 + ledger.num_used() + ledger.available()
        assert blocks == counts["owned"] * BLOCKS_PER_PAGE, (blocks, counts)
        held, info = self.driver.held_bytes(), self.info()
        assert (info.lease, info.created) == (held, held), (info, held)
        lost = sum(
            ledger.page_state(page) == "owned" and self.segment.is_quarantined(page)
            for page in range(self.pages)
        )
        least, most = counts["owned"] - lost, counts["owned"] + counts["quarantined"]
        assert least * PAGE <= held <= most * PAGE, (held / PAGE, counts, lost)
        assert self.rank.mapped_bytes <= held

    def close(self) -> None:
        self.rank.close()

    # --- memory ---

    def _address(self, block: int) -> Iterable[int]:
        page, index = divmod(block, BLOCKS_PER_PAGE)
        for arena, size in zip(self.arenas, EXTENTS, strict=True):
            yield arena.base + page * size + index * (size // BLOCKS_PER_PAGE)

    def _write(self, block: int, stamp: int) -> None:
        for address in self._address(block):
            memmove(address, struct.pack("Q", stamp), 8)

    def _check(self, block: int, stamp: int) -> None:
        for address in self._address(block):
            (found,) = struct.unpack("Q", string_at(address, 8))
            assert found == stamp, f"{self.name}: block {block} holds {found}, not {stamp}"


def make_segment(directory: Path, name: str, pages: int) -> Segment:
    return Segment.create(str(directory / f"{name}.segment"), pages, 1)
