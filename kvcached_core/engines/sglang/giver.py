"""Giving back: which pages go, to whom they are of use, and how they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Need
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.pool import Pool
from kvcached_core.engines.sglang.pools import Pools
from kvcached_core.engines.sglang.supply import SglangSupply
from kvcached_core.instance.plan import StoragePlan


class Giver:
    """No running request gives way to a neighbour: what goes is free, or only the tree's."""

    def __init__(
        self, plan: StoragePlan, memory: Memory, pools: Pools, supply: SglangSupply
    ) -> None:
        self.forward_stream: Any = None
        """Where passes run beside the current stream."""
        self._memory = memory
        self._pools = pools
        self._supply = supply
        self._bound = plan.settings.prefix_bound
        self._bound_pages = 0 if not self._bound else max(1, self._bound // plan.page_bytes)
        self._page_bytes = sum(plan.extent_bytes)

    def give(self, short: Sequence[int], goal: Need, step: int, *, resting: bool) -> int:
        """Retires spare pages that are surplus or asked for, and looks for more of them; returns
        how many neighbours ask for. `short` pages are lacking to each pool for `goal`."""
        supply, pools = self._supply, self._pools
        if resting:
            supply.rest()
        else:
            supply.end_pass(sum(short))
        self._keep_bound(resting)
        given = supply.pages_for_neighbours()
        asked = [
            max(mine, theirs)
            for mine, theirs in zip(self._shares_of(given), self._moves(short, goal), strict=True)
        ]
        for pool, pages in zip(pools.members, asked, strict=True):
            self._evict_for(pool, pages)
        retired: list[int] = []
        # What one gives up may let another fall below its share: as many rounds as there are pools.
        for at, pool in [*enumerate(pools.members)] * len(pools.members):
            most = pool.pages_beyond(max(pool.demand.step, pool.demand.admit))
            surplus = 0 if any(short) else min(most, supply.surplus_with(0, resting=resting))
            gone = pools.retire(at, max(asked[at], surplus))
            retired += gone
            asked[at] -= len(gone)
        self.retire(retired)
        for pool, pages in zip(pools.members, asked, strict=True):
            self._look(pool, pages, short, step, resting=resting)
        return given

    def _shares_of(self, given: int) -> list[int]:
        """What each pool has to give of the pages that neighbours ask for."""
        parts = []
        for at, pool in enumerate(self._pools.members):
            most = min(pool.unused_pages(), self._pools.ledger.beyond_share(at))
            parts.append(min(given, most))
            given -= parts[-1]
        parts[-1] += given
        return parts

    def _moves(self, short: Sequence[int], goal: Need) -> list[int]:
        """What each pool has to give for others to have what they lack."""
        pools = self._pools
        return [
            min(
                self._supply.unobtainable(sum(short) - short[at]),
                pool.pages_to_spare(goal),
                pools.ledger.beyond_share(at),
            )
            for at, pool in enumerate(pools.members)
        ]

    def retire(self, pages: Sequence[int]) -> None:
        """Sends pages back, behind all passes that are queued."""
        if not pages and not self._supply.has_aborted():
            return
        self._pools.refresh()
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
        pools = self._pools
        found = any(
            p.stock.is_looking or p.stock.collectable_pages(p.num_listed) for p in pools.members
        )
        least = 0
        if resting and not found and pools.ledger.num_used() > self._bound_pages:
            least = self._page_bytes
        for at in reversed(range(len(pools.members))):
            # What full attention drops, windows drop too.
            weight = sum(pool.token_bytes for pool in pools.members[: at + 1])
            held = sum(pool.evictable() * pool.token_bytes for pool in pools.members)
            over = max(least, held - self._bound)
            pool = pools.members[at]
            if tokens := min(max(0, -int(-over // weight)), pool.evictable()):
                pool.evict(tokens)
                least = 0

    def _evict_for(self, pool: Pool, given: int) -> None:
        """So many tokens as the pages hold that are asked for and neither spare nor to be found:
        scattered over more pages they empty fewer, and after the next look more are evicted."""
        lacking = given - pool.ledger.empty_pages() - pool.stock.collectable_pages(pool.num_listed)
        if lacking > 0 and not pool.stock.is_looking:
            pool.evict(min(lacking * pool.page_tokens, pool.evictable()))

    def _look(
        self, pool: Pool, asked: int, short: Sequence[int], step: int, *, resting: bool
    ) -> None:
        supply = self._supply
        if pool.stock.is_looking:
            return
        found = pool.stock.collectable_pages(pool.num_listed)
        wanted = min(max(0, asked), pool.pages_beyond(pool.demand.step))
        if not any(short):
            most = min(found, pool.pages_beyond(max(pool.demand.step, pool.demand.admit)))
            wanted = max(wanted, min(most, supply.surplus_with(most, resting=resting)))
        if pages := min(found, wanted):
            pool.look(pages, step)
