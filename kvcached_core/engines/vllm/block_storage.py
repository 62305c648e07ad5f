"""The half beside the scheduler: hands out blocks of pages that every rank owns.

It makes no driver call. It asks for memory through the instance's segment, ahead of need, and says
with each step's update which pages the step may touch first and which nothing needs any more. All
methods run in the engine core's thread; the watcher's thread only calls ``wakeup``.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_storage import KVBlockStorage, KVStorageUpdate

from kvcached_core.budget import Segment, open_device_budget, remove_segment
from kvcached_core.config import format_size
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.plan import StoragePlan
from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.engines.vllm.recorder import Recorder, RecordingQueue, log_path
from kvcached_core.engines.vllm.watcher import Watcher
from kvcached_core.pool import GrowthPolicy, Ledger
from kvcached_core.provenance.vllm import provenance

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool

# The scheduler half calls no driver: what the device itself has free is for the ranks to ask.
_UNKNOWN_FREE = 2**64 - 1
# An engine in which nothing can run looks again at least this often.
_STARVED_MS = 10
_SUSPEND_MS = 5000


class KvcachedBlockStorage(KVBlockStorage):  # type: ignore[misc]
    """See the interface. Raises RuntimeError from any call once a rank reports a failure after
    which blocks might be lost: the engine then stops instead of serving wrong data."""

    def __init__(self, plan: StoragePlan) -> None:
        super().__init__()
        settings = plan.settings
        self.plan = plan
        self.ledger = Ledger(plan.num_blocks, plan.blocks_per_page)
        self._policy = GrowthPolicy(settings.reserve_pages)
        self._page_bytes = plan.page_bytes
        self._per_page = plan.blocks_per_page
        self._bound = _bound_in_pages(plan)
        self._limit_pages = plan.limit // self._page_bytes
        self._floor_pages = -(-plan.floor // self._page_bytes)
        self._segment = Segment.open(str(plan.segment))
        self._rows = [self._row_of(rank) for rank in range(plan.num_ranks)]
        self._budget = open_device_budget(plan.budget_dir, plan.device)
        self._epoch = 0
        self._retiring: list[tuple[int, list[int], list[int]]] = []
        self._aborting: list[int] = []
        self._short_pages = 0  # of this pass
        self._admitting = False  # what is reserved next is for a request that waits
        self._suspended = False
        self._wish = 0  # as published
        self._idle_pages = 0  # as published
        self._refused_at: int | None = None
        self._unsettled = False
        self._gave_up = False  # waiting for growth instead of evicting, in this pass
        self._pid = os.getpid()
        self._pool: BlockPool | None = None
        self._watcher: Watcher | None = None
        log = settings.allocation_log
        self._recorder = Recorder(log_path(log, plan.instance), plan) if log else None
        self._evicting = False

    # --- capacity ---

    def bind(self, pool: BlockPool) -> Any:
        if pool.num_gpu_blocks != self.plan.num_blocks or self._pool is not None:
            raise RuntimeError(
                f"the block pool has {pool.num_gpu_blocks} blocks, planned were "
                f"{self.plan.num_blocks}, or a second pool attaches"
            )
        self._pool = pool
        self._watcher = Watcher(self._budget, self._rows[0], self._wake, self._look_again)
        atexit.register(self.shutdown)
        logger.info(
            "KV storage: kvcached, engine %s on budget %s: reserved %s in %d pages of %s "
            "(%d blocks each), floor %s, limit %s, capacity %s; %s",
            self.plan.instance,
            self.plan.device,
            format_size(self.plan.reserved_bytes),
            self.plan.num_pages,
            format_size(self.plan.page_bytes),
            self.plan.blocks_per_page,
            format_size(self.plan.floor),
            format_size(self.plan.limit),
            format_size(self.plan.capacity),
            provenance(),
        )
        if self._recorder is not None:
            return RecordingQueue(
                pool.blocks, self.ledger, self._grow_before_evicting, self._recorder
            )
        return LedgerQueue(pool.blocks, self.ledger, self._grow_before_evicting)

    def num_available_blocks(self) -> int:
        # On the path of every request in every pass: as few calls as can be.
        return self.ledger.obtainable(self._growable_pages(), self._segment.outstanding())

    def usage(self) -> float:
        used = self.ledger.num_used()
        total = used + self.num_available_blocks()
        return used / total if total else 0.0

    def admit(self, num_blocks: int) -> bool:
        if self._suspended or self._is_beyond_share(num_blocks):
            return False
        self._admitting = True
        short = self._pages_short(num_blocks)
        if self._needs_neighbours(short):
            self._short_pages = max(self._short_pages, short)
        return True

    def reserve(self, num_blocks: int) -> bool:
        admitting, self._admitting = self._admitting, False
        if self.ledger.available() >= num_blocks:
            return not self._suspended
        if self._suspended:
            return False
        self._settle()
        short = self._pages_short(num_blocks)
        if short:
            self._grow(short, short)
            short = self._await_growth(lambda: self._pages_short(num_blocks))
        if self._needs_neighbours(short) and not (admitting and self.ledger.num_used()):
            short = self._await_reclaim(num_blocks)
        if short:
            self._short_pages = max(self._short_pages, short)
            self._publish_wish(self._short_pages)
        return not short

    # --- the prefix cache ---

    def on_blocks_uncached(self, blocks: Any) -> None:
        everything = self._pool is not None and blocks is self._pool.blocks
        ids = [] if everything else [block.block_id for block in blocks]
        if everything:
            self.ledger.reset_cached()
        else:
            self.ledger.uncache(ids)
        if self._recorder is None or self._evicting:
            return  # what the storage evicts by itself, a replay decides anew
        if everything:
            self._recorder.reset()
        else:
            self._recorder.uncached(ids)

    # --- updates ---

    def has_pending_update(self) -> bool:
        # Asked only when nothing can run; what holds blocks then is paused or waits for its client.
        if self._suspended:
            return False
        self._settle()
        self._short_pages = 0
        self._policy.rest()
        self._publish_wish(0)
        self._publish_idle()
        self._unsettled = self._segment.outstanding() > 0
        if self._recorder is not None:
            self._recorder.idle()
        return (
            bool(self._aborting)
            or self._is_over_bound()
            or self._surplus_pages() > 0
            or self._pages_for_neighbours() > 0
        )

    def take_update(self) -> KVStorageUpdate | None:
        self._settle()
        if self._suspended:
            return None
        ledger = self.ledger
        self._policy.end_pass(ledger.used_pages(), self._short_pages)
        if self._bound is not None and ledger.is_over_bound(self._bound):
            self._evict(ledger.victims_over_bound(self._bound))
        given = self._pages_for_neighbours()
        if given > ledger.empty_pages():
            self._evict(ledger.victims_for_pages(given - ledger.empty_pages()))
        pages = ledger.retire_empty(max(given, self._surplus_pages()))
        if not given and ledger.num_used():
            self._grow(0, 0)
        self._publish_wish(self._short_pages)
        self._publish_idle()
        update = self._next_update(pages)
        if self._recorder is not None:
            self._recorder.end_pass()
        if update is None and self._short_pages and not ledger.num_used():
            self._await_anything()
        self._short_pages = 0
        self._admitting = False
        self._unsettled = self._gave_up = False
        return update

    def _next_update(self, pages: list[int]) -> KVStorageUpdate | None:
        first_used = self.ledger.take_first_used()
        aborted, self._aborting = self._aborting, []
        if not (pages or first_used or aborted):
            return None
        self._epoch += 1
        if pages or aborted:
            self._retiring.append((self._epoch, pages, aborted))
            self._segment.record(pages, "owned", "retiring", self._epoch)
            self._segment.record(aborted, "preparing", "retiring", self._epoch)
        return KVStorageUpdate(epoch=self._epoch, map=tuple(first_used), retire=(*pages, *aborted))

    # --- sleep and end ---

    def suspend(self) -> None:
        if self.ledger.num_used():
            raise RuntimeError(
                f"KV storage of engine {self.plan.instance}: {self.ledger.num_used()} blocks are "
                "in use, so it cannot sleep; abort or finish their requests first"
            )
        self._await_all_growth()
        self._policy.rest()
        self._evict(self.ledger.victims_over_bound(0))
        pages = self.ledger.retire_empty(self.plan.num_pages)
        # Every worker's suspend counts the same epoch and releases all that it has.
        self._epoch += 1
        aborted, self._aborting = self._aborting, []
        self._retiring.append((self._epoch, pages, aborted))
        self._suspended = True
        self._publish_wish(0)
        self._publish_idle()

    def resume(self) -> None:
        self._settle()
        self._suspended = False

    def shutdown(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child ends: the engine goes on
        atexit.unregister(self.shutdown)
        if self._watcher is not None:
            self._watcher.stop()
        if self._recorder is not None:
            self._recorder.close()
        remove_segment(self.plan.segment)

    # --- inside: bounded waits ---

    def _await_growth(self, pages_short: Callable[[], int]) -> int:
        """Waits for growth on its way until nothing is short; returns the pages still short."""
        deadline = _deadline(self.plan.settings.reserve_wait_ms)
        while True:
            seen = self._segment.progress()
            self._settle()
            short = pages_short()
            left = _left_ms(deadline)
            if not short or not self._segment.outstanding() or not left:
                return short
            self._segment.wait_progress(seen, left)

    def _await_reclaim(self, num_blocks: int) -> int:
        """Waits for neighbours to give up what none of their requests uses, since without it a
        running request loses its work; returns the pages still short."""
        deadline = _deadline(self.plan.settings.reclaim_wait_ms)
        while True:
            seen, progress = self._budget.event(), self._segment.progress()
            self._settle()
            short = self._pages_short(num_blocks)
            coming, left = self._segment.outstanding(), _left_ms(deadline)
            # Two that wait for each other would only lose time: who is asked gives first.
            if not short or not left or self._pages_for_neighbours():
                return short
            if coming:
                self._segment.wait_progress(progress, left)
            elif short <= self._free_pages():
                self._grow(short, short)
            elif short <= self._growable_pages():
                self._publish_wish(max(self._short_pages, short))
                self._budget.wait_event(seen, left)
            else:
                return short

    def _await_anything(self) -> None:
        """Nothing can run for want of memory: a short sleep that any change in the record ends."""
        if not self._segment.outstanding():
            self._budget.wait_event(self._budget.event(), _STARVED_MS)

    def _await_all_growth(self) -> None:
        deadline = _deadline(_SUSPEND_MS)
        while self._segment.outstanding():
            seen = self._segment.progress()
            self._settle()
            if not (left := _left_ms(deadline)):
                raise RuntimeError(
                    f"KV storage of engine {self.plan.instance}: its ranks did not answer within "
                    f"{_SUSPEND_MS} ms, so it cannot sleep"
                )
            if self._segment.outstanding():
                self._segment.wait_progress(seen, left)

    # --- inside ---

    def _row_of(self, rank: int) -> int:
        info = self._segment.rank_info(rank)
        if not info["joined"]:
            raise RuntimeError(
                f"rank {rank} of engine {self.plan.instance} has not started its KV storage; its "
                "worker must be initialized before the scheduler"
            )
        return int(info["row"])

    def _wake(self) -> None:
        self.wakeup()

    def _look_again(self) -> bool:
        """Read by the watcher: growth came or comes after the engine fell asleep."""
        return self._unsettled

    def _growable_pages(self) -> int:
        bytes_left = min([self._budget.reachable(row, _UNKNOWN_FREE) for row in self._rows])
        return bytes_left // self._page_bytes

    def _free_pages(self) -> int:
        """Pages that the budget would grant now."""
        free = min(self._budget.available(row, _UNKNOWN_FREE) for row in self._rows)
        return free // self._page_bytes

    def _needs_neighbours(self, short_pages: int) -> bool:
        """Whether so many more pages are to be had only if a neighbour gives some up."""
        return short_pages > self._segment.outstanding() + self._free_pages()

    def _is_beyond_share(self, num_blocks: int) -> bool:
        """Whether others lack memory of which this engine's requests would use more than its
        share. Never so without a request: then the first one is let in."""
        ledger, per_page = self.ledger, self._per_page
        if not ledger.num_used():
            return False
        share = min(self._budget.fair_share(row) for row in self._rows)
        room = ledger.used_pages() * per_page - 1 - ledger.num_used()
        pages = ledger.used_pages() + max(0, -((room - num_blocks) // per_page))
        return pages * self._page_bytes > share

    def _pages_short(self, num_blocks: int) -> int:
        return max(0, -((self.ledger.available() - num_blocks) // self._per_page))

    def _grow_before_evicting(self, num_blocks: int) -> None:
        """Called when `num_blocks` are popped and fewer are free. A prefix is worth a short wait,
        but after one in vain none in the same pass, and no memory that somebody else needs."""
        if self._gave_up or not self.ledger.pages("virtual"):
            return

        def missing() -> int:
            return max(0, -((self.ledger.num_free() - num_blocks) // self._per_page))

        self._settle()
        if short := missing():
            self._grow(short, 0)
            self._gave_up = self._await_growth(missing) > 0

    def _grow(self, short_pages: int, due_pages: int) -> None:
        """Asks for what is short and for the reserve: for `due_pages` of it in any case, for the
        rest as far as nobody else needs the memory."""
        ledger = self.ledger
        coming = self._segment.outstanding()
        wanted = self._policy.pages_to_grow(ledger.empty_pages(), coming, short_pages)
        wanted = min(wanted, ledger.pages("virtual"))
        needed = 0 if self._is_refused() else max(0, due_pages - coming)
        if wanted > needed:
            wanted = max(needed, min(wanted, self._spare_pages()))
        pages = ledger.plan_growth(wanted)
        if pages:
            self._segment.request(pages)

    def _spare_pages(self) -> int:
        """Pages that can be had without taking what a neighbour has or waits for."""
        if self._is_refused():
            return 0
        pages = self._free_pages()
        if pages and any(
            other.want and other.instance != self.plan.instance for other in self._budget.rows()
        ):
            return 0
        return pages

    def _is_refused(self) -> bool:
        """Whether a rank said no, and nothing has changed in the record since."""
        return self._refused_at == self._budget.event()

    def _settle(self) -> None:
        """Takes in what the ranks have done since the last look."""
        if self._segment.outstanding():
            owned, refused, partial = self._segment.poll()
            self.ledger.grown(owned)
            self.ledger.growth_failed(refused)
            self._aborting += partial
            if refused or partial:
                self._refused_at = self._budget.event()
        if self._retiring:
            self._settle_released()
        if failure := self._segment.failure():
            raise RuntimeError(f"KV storage of engine {self.plan.instance} failed: {failure}")

    def _settle_released(self) -> None:
        released = self._segment.released_epoch()
        while self._retiring and self._retiring[0][0] <= released:
            epoch, pages, aborted = self._retiring.pop(0)
            lost = [p for p in (*pages, *aborted) if self._segment.is_quarantined(p)]
            if lost:
                logger.error("KV storage: %d pages lost to a driver error", len(lost))
                self.ledger.quarantine(lost)
            gone = [p for p in pages if p not in lost]
            failed = [p for p in aborted if p not in lost]
            self.ledger.released(gone)
            self.ledger.growth_failed(failed)
            self._segment.record(lost, "retiring", "quarantined", epoch)
            self._segment.record(gone + failed, "retiring", "virtual", epoch)

    def _is_over_bound(self) -> bool:
        return self._bound is not None and self.ledger.is_over_bound(self._bound)

    def _surplus_pages(self) -> int:
        """Empty pages beyond the reserve; none while a request waits for more of them."""
        if self._short_pages:
            return 0
        ledger = self.ledger
        return self._policy.pages_to_retire(
            ledger.empty_pages(), self._segment.outstanding(), idle=ledger.num_used() == 0
        )

    def _pages_for_neighbours(self) -> int:
        """Unused pages above the floor that a neighbour waits for and that are not on their way."""
        ledger = self.ledger
        # Whole pages cover the target: a neighbour's pages may be smaller than ours.
        target = -(-self._budget.reclaim_target(self._rows[0]) // self._page_bytes)
        unused = ledger.empty_pages() + ledger.cached_only_pages()
        above_floor = ledger.pages("owned") - self._floor_pages
        return max(0, min(target - ledger.pages("retiring"), unused, above_floor))

    def _evict(self, block_ids: list[int]) -> None:
        assert self._pool is not None
        self._evicting = True
        try:
            self._pool.evict_blocks(
                set(block_ids)
            )  # calls on_blocks_uncached, keeps KV events right
        finally:
            self._evicting = False

    def _publish_wish(self, pages: int) -> None:
        # What the limit forbids, no neighbour can give.
        pages = min(pages, max(0, self._limit_pages - self.ledger.pages("owned")))
        if pages != self._wish:
            self._wish = pages
            self._segment.set_wish(pages)

    def _publish_idle(self) -> None:
        idle = self.ledger.empty_pages() + self.ledger.cached_only_pages()
        if idle != self._idle_pages:
            self._idle_pages = idle
            self._segment.set_idle(idle)


def _deadline(milliseconds: int) -> float:
    return time.monotonic() + milliseconds / 1000


def _left_ms(deadline: float) -> int:
    """Whole milliseconds left, at least 1 before the deadline, 0 behind it."""
    left = deadline - time.monotonic()
    return max(1, int(left * 1000)) if left > 0 else 0


def _bound_in_pages(plan: StoragePlan) -> int | None:
    bound = plan.settings.prefix_bound
    if not bound:
        return bound  # none, or keep nothing
    pages = bound // plan.page_bytes
    if pages == 0:
        logger.warning(
            "KV storage: prefix_bound %s is less than one page of %s; one page is kept",
            format_size(bound),
            format_size(plan.page_bytes),
        )
    return max(1, pages)
