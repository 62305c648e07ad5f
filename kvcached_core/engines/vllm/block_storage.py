"""The half beside the scheduler: hands out blocks of pages that every rank owns.

It makes no driver call. It asks for memory through the instance's segment, ahead of need, and says
with each step's update which pages the step may touch first and which nothing needs any more. All
methods run in the engine core's thread; the watchers' threads only call ``wakeup``.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_storage import KVBlockStorage, KVStorageUpdate

from kvcached_core.config import format_size
from kvcached_core.engines.vllm.ending import outlive_sigterm
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.engines.vllm.recorder import Recorder, RecordingQueue, log_path
from kvcached_core.instance.budgets import RankLeft
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.supply import Supply
from kvcached_core.instance.watcher import Watchers
from kvcached_core.pool import Ledger
from kvcached_core.provenance.vllm import provenance

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class KvcachedBlockStorage(KVBlockStorage):  # type: ignore[misc]
    """See the interface. Raises RuntimeError from any call once a rank reports a failure after
    which blocks might be lost: the engine then stops instead of serving wrong data."""

    def __init__(self, plan: StoragePlan) -> None:
        super().__init__()
        self.plan = plan
        self.ledger = Ledger(plan.num_blocks, plan.blocks_per_page)
        self.supply = Supply(plan, self.ledger, logger)
        self._per_page = plan.blocks_per_page
        self._bound = _bound_in_pages(plan)
        self._short_pages = 0  # of this pass
        self._admitting = False  # what is reserved next is for a request that waits
        self._suspended = False
        self._unsettled = False
        self._gave_up = False  # waiting for growth instead of evicting, in this pass
        self._pid = os.getpid()
        self._pool: BlockPool | None = None
        self._watchers: Watchers | None = None
        log = plan.settings.allocation_log
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
        self._watchers = Watchers(self.supply, self._wake, self._look_again)
        atexit.register(self.shutdown)
        _log_start(self.plan)
        grow = self._grow_before_evicting
        if self._recorder is not None:
            return RecordingQueue(pool.blocks, self.ledger, grow, self._recorder)
        return LedgerQueue(pool.blocks, self.ledger, grow)

    def num_available_blocks(self) -> int:
        return self.supply.obtainable_blocks()

    def usage(self) -> float:
        used = self.ledger.num_used()
        try:
            total = used + self.supply.obtainable_blocks(anew=True)
        except RankLeft:  # told among others when the engine says why it ends
            total = used + self.ledger.available()
        return used / total if total else 0.0

    def admit(self, num_blocks: int) -> bool:
        # Without a request, the first one is let in, whatever the share.
        crowded = self.ledger.num_used() and self.supply.is_beyond_share(num_blocks)
        if self._suspended or crowded:
            return False
        self._admitting = True
        short = self._pages_short(num_blocks)
        if self.supply.needs_neighbours(short):
            self._short_pages = max(self._short_pages, short)
        return True

    def reserve(self, num_blocks: int) -> bool:
        admitting, self._admitting = self._admitting, False
        if self._suspended:
            return False
        if not num_blocks or self.ledger.available() >= num_blocks:
            return True
        supply = self.supply

        def short_now() -> int:
            return self._pages_short(num_blocks)

        supply.settle()
        short = short_now()
        if short:
            supply.grow(short, short)
            short = supply.await_growth(short_now)
        if supply.needs_neighbours(short) and not (admitting and self.ledger.num_used()):
            short = supply.await_reclaim(short_now, self._short_pages)
        if short:
            self._short_pages = max(self._short_pages, short)
            supply.publish_wish(self._short_pages)
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
        supply = self.supply
        supply.settle()
        self._short_pages = 0
        supply.rest()
        supply.rest_from_growth()
        supply.publish_wish(0)
        supply.publish_idle(resting=True)
        self._unsettled = supply.is_growing()
        if self._recorder is not None:
            self._recorder.idle()
        return (
            supply.has_aborted()
            or self._is_over_bound()
            or supply.surplus_pages() > 0
            or supply.pages_for_neighbours() > 0
        )

    def take_update(self) -> KVStorageUpdate | None:
        supply, ledger = self.supply, self.ledger
        supply.settle()
        if self._suspended:
            return None
        supply.end_pass(self._short_pages)
        update = self._next_update(self._retire())
        if self._recorder is not None:
            self._recorder.end_pass()
        if update is None and self._short_pages and not ledger.num_used():
            supply.await_anything()
        self._short_pages = 0
        self._admitting = self._unsettled = self._gave_up = False
        return update

    def _retire(self) -> list[int]:
        """Evicts and takes from the ledger what is to go; asks for the reserve; tells it."""
        supply, ledger = self.supply, self.ledger
        if self._bound is not None and self._is_over_bound():
            self._evict(ledger.victims_over_bound(self._bound))
        given = supply.pages_for_neighbours()
        if given > ledger.empty_pages():
            self._evict(ledger.victims_for_pages(given - ledger.empty_pages()))
        # A request that waits may need more than the reserve.
        surplus = 0 if self._short_pages else supply.surplus_pages()
        pages = ledger.retire_empty(max(given, surplus))
        wish = self._short_pages
        if not given and ledger.num_used():
            supply.grow(0, 0)
            wish = max(wish, supply.reserve_wish())
        supply.publish_wish(wish)
        supply.publish_idle(resting=False)
        return pages

    def _next_update(self, pages: list[int]) -> KVStorageUpdate | None:
        first_used = self.ledger.take_first_used()
        if not (pages or first_used or self.supply.has_aborted()):
            return None
        epoch, retired = self.supply.next_epoch(pages)
        return KVStorageUpdate(epoch=epoch, map=tuple(first_used), retire=tuple(retired))

    # --- sleep and end ---

    def suspend(self) -> None:
        if self.ledger.num_used():
            raise RuntimeError(
                f"KV storage of engine {self.plan.instance}: {self.ledger.num_used()} blocks are "
                "in use, so it cannot sleep; abort or finish their requests first"
            )
        supply = self.supply
        supply.finish_growth()
        supply.rest()
        self._evict(self.ledger.victims_over_bound(0))
        # Every worker's suspend counts the same epoch and releases all that it has.
        supply.next_epoch(self.ledger.retire_empty(self.plan.num_pages))
        self._suspended = True
        supply.publish_wish(0)
        supply.publish_idle(resting=True)

    def resume(self) -> None:
        self.supply.settle()
        self._suspended = False

    def shutdown(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child ends: the engine goes on
        outlive_sigterm()
        atexit.unregister(self.shutdown)
        if self._watchers is not None:
            self._watchers.stop()
        if self._recorder is not None:
            self._recorder.close()
        self.supply.close()

    # --- inside ---

    def _wake(self) -> None:
        self.wakeup()

    def _look_again(self) -> bool:
        """Read by the watcher: growth came or comes after the engine fell asleep."""
        return self._unsettled

    def _pages_short(self, num_blocks: int) -> int:
        return max(0, -((self.ledger.available() - num_blocks) // self._per_page))

    def _grow_before_evicting(self, num_blocks: int) -> None:
        """Called when `num_blocks` are popped and fewer are free. A prefix is worth a short wait,
        but after one in vain none in the same pass, and no memory that somebody else needs."""
        if self._gave_up or not self.ledger.pages("virtual"):
            return

        def missing() -> int:
            return max(0, -((self.ledger.num_free() - num_blocks) // self._per_page))

        self.supply.settle()
        if short := missing():
            self.supply.grow(short, 0)
            self._gave_up = self.supply.await_growth(missing) > 0

    def _is_over_bound(self) -> bool:
        return self._bound is not None and self.ledger.is_over_bound(self._bound)

    def _evict(self, block_ids: list[int]) -> None:
        assert self._pool is not None
        self._evicting = True
        try:  # calls on_blocks_uncached, keeps KV events right
            self._pool.evict_blocks(set(block_ids))
        finally:
            self._evicting = False


def _log_start(plan: StoragePlan) -> None:
    logger.info(
        "KV storage: kvcached, engine %s on budget %s: reserved %s in %d pages of %s "
        "(%d blocks each), floor %s, limit %s, capacity %s; %s",
        plan.instance,
        ", ".join(dict.fromkeys(share.device for share in plan.all_shares)),
        format_size(plan.reserved_bytes),
        plan.num_pages,
        format_size(plan.page_bytes),
        plan.blocks_per_page,
        format_size(plan.floor),
        format_size(plan.limit),
        format_size(plan.capacity),
        provenance(),
    )


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
