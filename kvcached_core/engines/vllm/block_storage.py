"""The half beside the scheduler: hands out blocks of pages that every rank owns.

It makes no driver call. It asks for memory through the instance's segment, ahead of need, and says
with each step's update which pages the step may touch first and which nothing needs any more. All
methods run in the engine core's thread; the watcher's thread only calls ``wakeup``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_storage import KVBlockStorage, KVStorageUpdate

from kvcached_core.budget import Segment, open_device_budget, remove_segment
from kvcached_core.config import format_size
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.plan import StoragePlan
from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.engines.vllm.watcher import Watcher
from kvcached_core.pool import GrowthPolicy, Ledger

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool

# The scheduler half calls no driver: what the device itself has free is for the ranks to ask.
_UNKNOWN_FREE = 2**64 - 1


class KvcachedBlockStorage(KVBlockStorage):
    """See the interface. Raises RuntimeError from any call once a rank reports a failure after
    which blocks might be lost: the engine then stops instead of serving wrong data."""

    def __init__(self, plan: StoragePlan) -> None:
        super().__init__()
        settings = plan.settings
        self.plan = plan
        self.ledger = Ledger(plan.num_blocks, plan.blocks_per_page)
        self._policy = GrowthPolicy(settings.reserve_pages, max(2 * settings.reserve_pages, 1))
        self._bound = (
            None if settings.prefix_bound is None else settings.prefix_bound // plan.page_bytes
        )
        self._segment = Segment.open(str(plan.segment))
        self._rows = [self._segment.rank_info(rank) for rank in range(plan.num_ranks)]
        self._budget = open_device_budget(plan.budget_dir, plan.device)
        self._epoch = 0
        self._retiring: list[tuple[int, list[int], list[int]]] = []
        self._aborting: list[int] = []
        self._short_pages = 0
        self._idle_pages = 0
        self._pool: BlockPool | None = None
        self._watcher: Watcher | None = None

    # --- capacity ---

    def bind(self, pool: BlockPool) -> Any:
        if pool.num_gpu_blocks != self.plan.num_blocks or self._pool is not None:
            raise RuntimeError(
                f"the block pool has {pool.num_gpu_blocks} blocks, planned were "
                f"{self.plan.num_blocks}, or a second pool attaches"
            )
        self._pool = pool
        self._watcher = Watcher(self._budget, self._rows[0]["row"], self.plan.page_bytes, self._wake)
        logger.info(
            "KV storage: kvcached, engine %s on budget %s: reserved %s in %d pages of %s "
            "(%d blocks each), floor %s, limit %s, capacity %s",
            self.plan.instance,
            self.plan.device,
            format_size(self.plan.num_pages * self.plan.page_bytes),
            self.plan.num_pages,
            format_size(self.plan.page_bytes),
            self.plan.blocks_per_page,
            format_size(self.plan.floor),
            format_size(self.plan.limit),
            format_size(self.plan.capacity),
        )
        return LedgerQueue(pool.blocks, self.ledger)

    def num_available_blocks(self) -> int:
        growth = min(self._growable_pages(), self.ledger.pages("virtual"))
        growth += self.ledger.pages("preparing")
        free = self.ledger.available() + growth * self.plan.blocks_per_page
        return min(free, self.plan.num_blocks - 1 - self.ledger.num_used())

    def usage(self) -> float:
        used = self.ledger.num_used()
        total = used + self.num_available_blocks()
        return used / total if total else 0.0

    def reserve(self, num_blocks: int) -> bool:
        if self.ledger.available() >= num_blocks:
            return True
        self._settle()
        deadline = time.monotonic() + self.plan.settings.reserve_wait_ms / 1000
        short = self._pages_short(num_blocks)
        if short:
            self._grow(short)
        while short:
            seen = self._segment.progress()
            self._settle()
            short = self._pages_short(num_blocks)
            left = deadline - time.monotonic()
            if not short or not self._segment.outstanding() or left <= 0:
                break
            self._segment.wait_progress(seen, max(1, int(left * 1000)))
        if short:
            self._short_pages = max(self._short_pages, short)
            self._segment.set_wish(self._short_pages)
        return not short

    # --- the prefix cache ---

    def on_blocks_uncached(self, blocks: Any) -> None:
        if self._pool is not None and blocks is self._pool.blocks:
            self.ledger.reset_cached()
        else:
            self.ledger.uncache([block.block_id for block in blocks])

    # --- updates ---

    def has_pending_update(self) -> bool:
        # Asked only when nothing runs and nothing waits, so whatever is unused may go.
        self._settle()
        self._publish_idle()
        return self._pages_to_retire(idle=True) > 0 or self._reclaim_pages() > 0

    def take_update(self) -> KVStorageUpdate | None:
        self._settle()
        self._evict_over_bound()
        self._evict_for_neighbours()
        idle = self.ledger.num_used() == 0
        pages = self.ledger.retire_empty(self._pages_to_retire(idle) + self._reclaim_pages())
        if not idle:
            self._grow(0)
        self._segment.set_wish(self._short_pages)
        self._short_pages = 0
        self._publish_idle()
        first_used = self.ledger.take_first_used()
        if not (pages or first_used or self._aborting):
            return None
        self._epoch += 1
        if pages or self._aborting:
            self._retiring.append((self._epoch, pages, self._aborting))
        update = KVStorageUpdate(
            epoch=self._epoch, map=tuple(first_used), retire=(*pages, *self._aborting)
        )
        self._aborting = []
        return update

    def shutdown(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        remove_segment(self.plan.segment)

    # --- inside ---

    def _wake(self) -> None:
        self.wakeup()

    def _growable_pages(self) -> int:
        bytes_left = min(
            self._budget.reachable(info["row"], _UNKNOWN_FREE) for info in self._rows
        )
        return bytes_left // self.plan.page_bytes

    def _pages_short(self, num_blocks: int) -> int:
        return max(0, -((self.ledger.available() - num_blocks) // self.plan.blocks_per_page))

    def _grow(self, short_pages: int) -> None:
        ledger = self.ledger
        wanted = self._policy.pages_to_grow(
            ledger.empty_pages(), ledger.pages("preparing"), short_pages
        )
        if not short_pages:
            wanted = min(wanted, self._grantable_pages())
        pages = ledger.plan_growth(min(wanted, ledger.pages("virtual")))
        if pages:
            self._segment.request(pages)

    def _grantable_pages(self) -> int:
        """Pages that can be had without asking a neighbour to give any back."""
        return (
            min(self._budget.available(info["row"], _UNKNOWN_FREE) for info in self._rows)
            // self.plan.page_bytes
        )

    def _settle(self) -> None:
        """Takes in what the ranks have done since the last look."""
        if self._segment.outstanding():
            owned, refused, partial = self._segment.poll()
            self.ledger.grown(owned)
            self.ledger.growth_failed(refused)
            self._aborting += partial
        if self._retiring:
            self._settle_released()
        if failure := self._segment.failure():
            raise RuntimeError(f"KV storage of engine {self.plan.instance} failed: {failure}")

    def _settle_released(self) -> None:
        released = self._segment.released_epoch()
        while self._retiring and self._retiring[0][0] <= released:
            _, pages, aborted = self._retiring.pop(0)
            lost = [p for p in (*pages, *aborted) if self._segment.is_quarantined(p)]
            if lost:
                logger.error("KV storage: %d pages lost to a driver error", len(lost))
                self.ledger.quarantine(lost)
            self.ledger.released([p for p in pages if p not in lost])
            self.ledger.growth_failed([p for p in aborted if p not in lost])

    def _pages_to_retire(self, idle: bool) -> int:
        ledger = self.ledger
        return self._policy.pages_to_retire(ledger.empty_pages(), ledger.pages("preparing"), idle)

    def _reclaim_pages(self) -> int:
        """Unused pages that a neighbour waits for and that are not on their way already."""
        target = self._budget.reclaim_target(self._rows[0]["row"]) // self.plan.page_bytes
        ledger = self.ledger
        unused = ledger.empty_pages() + ledger.cached_only_pages()
        return max(0, min(target - ledger.pages("retiring"), unused))

    def _evict_for_neighbours(self) -> None:
        missing = self._reclaim_pages() - self.ledger.empty_pages()
        if missing > 0:
            self._evict(self.ledger.victims_for_pages(missing))

    def _evict_over_bound(self) -> None:
        if self._bound is not None and self.ledger.cached_only_pages() > self._bound:
            self._evict(self.ledger.victims_over_bound(self._bound))

    def _evict(self, block_ids: list[int]) -> None:
        assert self._pool is not None
        self._pool.evict_blocks(set(block_ids))  # calls on_blocks_uncached; keeps KV events right

    def _publish_idle(self) -> None:
        idle = self.ledger.empty_pages() + self.ledger.cached_only_pages()
        if idle != self._idle_pages:
            self._idle_pages = idle
            self._segment.set_idle(idle)

