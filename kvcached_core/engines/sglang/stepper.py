"""What happens once an iteration of the scheduler: memory is taken in, asked for and given back.

All methods run in the scheduler's thread; the watcher's only rings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Demand, Limits, demand_of
from kvcached_core.engines.sglang.giver import Giver
from kvcached_core.engines.sglang.log import logger
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.pool import Pool
from kvcached_core.engines.sglang.supply import SglangSupply
from kvcached_core.engines.sglang.wake import Wake
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.watcher import Watcher

# An idle scheduler that spins looks this often without being rung, and one that wakes tries again.
_LOOK_S = 0.2


class Stepper:
    def __init__(self, plan: StoragePlan, memory: Memory, pool: Pool) -> None:
        self.supply = SglangSupply(plan, pool.ledger, logger, unused_pages=pool.unused_pages)
        self.wake = Wake()
        self._plan = plan
        self._memory = memory
        self._pool = pool
        self._giver = Giver(plan, memory, pool, self.supply)
        self._limits: Limits | None = None
        self._watcher: Watcher | None = None
        self._step = 0
        self._arrived = 0  # requests that the last step may have admitted
        self._looked = 0.0
        self._owned = 0
        self._rested = False  # since the last request
        self._unsettled = False  # something is on its way
        self._asleep = self._waking = False

    def bind(self, tree: Any, limits: Limits) -> None:
        self._pool.bind(tree)
        self._limits = limits
        supply = self.supply
        self._watcher = Watcher(
            supply.budget,
            supply.row,
            self.wake.ring,
            supply.is_asked,
            lambda: self._unsettled,
            supply.segment.ring_ranks,
        )

    def note_forward(self, stream: Any) -> None:
        self._giver.forward_stream = stream

    def begin(self, waiting: Sequence[Any], chunked: Any, running: Any) -> None:
        if self._asleep and not self._try_to_wake():
            return
        busy = bool(waiting) or chunked is not None or bool(running.reqs) or self._arrived > 0
        if not busy and self._rested and not self._has_news():
            return
        self._rested = not busy
        self._step += 1
        self._memory.lower_claim()
        self.wake.take()
        self.supply.settle()
        more = self._pool.settle(self._step)
        assert self._limits is not None
        demand = demand_of(waiting, chunked, running, self._arrived, self._limits)
        arrived, self._arrived = self._arrived, demand.arriving
        self._pool.step_tokens = demand.step
        short = self._take(demand, running)
        more |= self._has_grown()
        if waiting and (more or not running.reqs):
            running.batch_is_full = False  # what was not admitted may be now
        given = self._giver.give(demand, short, self._step, resting=not busy)
        self._tell(short, given, busy)
        if short and not running.reqs and not arrived:
            self.supply.await_anything()

    def _has_news(self) -> bool:
        """Whether an idle engine has anything to do."""
        if self.wake.rung or self._unsettled:
            return True
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return True

    def _has_grown(self) -> bool:
        before, self._owned = self._owned, self._pool.ledger.pages("owned")
        return self._owned > before

    # --- taking ---

    def _take(self, demand: Demand, running: Any) -> int:
        """Asks for what is lacking, and waits within bounds; returns pages that still are."""
        supply, pool = self.supply, self._pool
        goal, hoped, ahead = demand.first, demand.admit, demand.ahead
        if demand.arriving and running.reqs and supply.is_beyond_share(pool.pages_short(0, goal)):
            # Others lack memory, and these requests have their share of it.
            goal = hoped = ahead = demand.decode

        def lacking() -> int:
            return pool.pages_short(0, goal)

        def lacking_yet() -> int:
            # Fewer requests in a pass cost more than a short wait does; and what the step takes
            # is not to come from evicting prefixes while memory may be had.
            return max(pool.pages_short(0, hoped), pool.pages_short(demand.step, 0))

        if lacking():
            pool.restore()
        short, wanted = lacking(), max(lacking_yet(), pool.pages_short(0, ahead))
        if wanted or (demand.step and not supply.pages_for_neighbours()):
            supply.grow(wanted, short)
        if lacking_yet():
            supply.await_growth(lacking_yet)
            short = lacking()
        starved = pool.pages_short(0, demand.decode) if running.reqs else short
        if starved and supply.needs_neighbours(starved):
            supply.await_reclaim(
                lambda: pool.pages_short(0, demand.decode if running.reqs else goal), short
            )
            short = lacking()
        return short

    def _tell(self, short: int, given: int, busy: bool) -> None:
        supply = self.supply
        wish = short
        if busy and not given:
            wish = max(wish, supply.reserve_wish())
        supply.publish_wish(wish)
        supply.publish_idle(resting=not busy)
        looking = self._pool.stock.is_looking
        self._unsettled = looking or supply.is_growing()
        if looking and not busy:
            self.wake.ring()  # nothing else brings the next step

    # --- sleep and end ---

    def release(self) -> None:
        """Nothing is in use. All pages but the first go back, and the floor."""
        supply = self.supply
        supply.finish_growth()
        self._pool.clear()
        supply.rest()
        self._pool.step_tokens = self._arrived = 0
        self._giver.retire(self._pool.ledger.retire_empty(self._plan.num_pages))
        self._memory.drain()
        supply.settle()
        self._pool.stock.refresh()
        self._asleep = self._pool.stock.suspended = True
        self._memory.sleep()
        supply.publish_wish(0)
        supply.publish_idle(resting=True)

    def resume(self) -> None:
        """Nothing can be taken before the floor is there again."""
        self._waking = self._asleep
        self._looked = 0.0
        self._try_to_wake()

    def _try_to_wake(self) -> bool:
        if not self._waking or time.monotonic() - self._looked < _LOOK_S:
            return False
        self._looked = time.monotonic()
        if not self._memory.wake():
            return False
        self._asleep = self._waking = self._rested = False
        self._pool.stock.suspended = False
        return True

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    def report(self) -> dict[str, Any]:
        """Counts of this rank, for whoever looks into the process."""
        ledger, counters = self._pool.ledger, self._memory.rank.counters()
        return {
            "steps": self._step,
            "owned_pages": ledger.pages("owned"),
            "spare_pages": ledger.empty_pages(),
            "num_pages": ledger.num_pages(),
            "mapped_bytes": self._memory.rank.mapped_bytes,
            "page_bytes": self._plan.page_bytes,
            "page_tokens": self._pool.page_tokens,
            "floor": self._plan.floor,
            "pages_created": counters["created"],
            "pages_released": counters["released"],
        }
