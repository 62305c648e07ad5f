"""Giving back: which pages go, to whom they are of use, and how they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Demand
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.pool import Pool
from kvcached_core.engines.sglang.supply import SglangSupply
from kvcached_core.instance.plan import StoragePlan


class Giver:
    """No running request gives way to a neighbour: what goes is free, or only the tree's."""

    def __init__(self, plan: StoragePlan, memory: Memory, pool: Pool, supply: SglangSupply) -> None:
        self.forward_stream: Any = None
        """Where passes run beside the current stream."""
        self._memory = memory
        self._pool = pool
        self._supply = supply
        bound = plan.settings.prefix_bound
        token_bytes = sum(plan.extent_bytes) / pool.page_tokens
        self._bound = None if bound is None else int(bound // token_bytes)
        self._bound_pages = 0 if not bound else max(1, bound // plan.page_bytes)

    def give(self, demand: Demand, short: int, step: int, *, resting: bool) -> int:
        """Retires spare pages that are surplus or asked for, and looks for more of them; returns
        how many neighbours ask for. `short` pages are lacking."""
        supply, pool = self._supply, self._pool
        if resting:
            supply.rest()
        else:
            supply.end_pass(short)
        self._keep_bound(resting)
        given = supply.pages_for_neighbours()
        self._evict_for(given)
        most = pool.pages_beyond(max(demand.step, demand.admit))
        surplus = 0 if short else min(most, supply.surplus_with(0, resting=resting))
        pages = pool.ledger.retire_empty(max(given, surplus))
        self.retire(pages)
        self._look(given - len(pages), demand, short, step, resting=resting)
        return given

    def retire(self, pages: Sequence[int]) -> None:
        """Sends pages back, behind all passes that are queued."""
        if not pages and not self._supply.has_aborted():
            return
        self._pool.stock.refresh()
        epoch, retired = self._supply.next_epoch(pages)
        streams = self._memory.device.streams()
        if streams and self.forward_stream is not None:
            streams.append(int(self.forward_stream.cuda_stream))
        self._memory.retire(retired, epoch, streams)

    def _keep_bound(self, resting: bool) -> None:
        """Evicts down to the tokens that fit in the bound; at rest, where pages that have any are
        the tree's, until they are no more than it, a page's worth of tokens after each look."""
        if self._bound is None:
            return
        pool = self._pool
        tokens = pool.evictable() - self._bound
        found = pool.stock.is_looking or pool.stock.collectable_pages(pool.num_listed)
        if resting and not found and pool.ledger.num_used() > self._bound_pages:
            tokens = max(tokens, pool.page_tokens)
        pool.evict(tokens)

    def _evict_for(self, given: int) -> None:
        """So many tokens as the pages hold that are asked for and neither spare nor to be found:
        scattered over more pages they empty fewer, and after the next look more are evicted."""
        pool = self._pool
        lacking = given - pool.ledger.empty_pages() - pool.stock.collectable_pages(pool.num_listed)
        if lacking > 0 and not pool.stock.is_looking:
            pool.evict(min(lacking * pool.page_tokens, pool.evictable()))

    def _look(self, asked: int, demand: Demand, short: int, step: int, *, resting: bool) -> None:
        pool, supply = self._pool, self._supply
        if pool.stock.is_looking:
            return
        found = pool.stock.collectable_pages(pool.num_listed)
        wanted = min(max(0, asked), pool.pages_beyond(demand.step))
        if not short:
            most = min(found, pool.pages_beyond(max(demand.step, demand.admit)))
            wanted = max(wanted, min(most, supply.surplus_with(most, resting=resting)))
        if pages := min(found, wanted):
            pool.look(pages, step)
