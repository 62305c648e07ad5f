"""What happens once an iteration of the scheduler: memory is taken in, asked for and given back.

All methods run in the scheduler's thread; the watcher's only rings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Demand, Limits, Need
from kvcached_core.engines.sglang.giver import Giver
from kvcached_core.engines.sglang.log import logger
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.pools import Pools
from kvcached_core.engines.sglang.ranks.compare import Comparison
from kvcached_core.engines.sglang.ranks.roles import supply_of
from kvcached_core.engines.sglang.wake import Wake
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.watcher import Watchers

# An idle scheduler that spins looks this often without being rung, and one that wakes tries again;
# behind an attempt in vain after twice that, so that another engine's look falls between.
_LOOK_S = 0.2


class Stepper:
    def __init__(self, plan: StoragePlan, memory: Memory, pools: Pools) -> None:
        """Takes memory for padding's pages but the first, which there is. Raises BudgetError."""
        board = memory.board
        self.supply = supply_of(
            plan, pools.ledger, logger, unused_pages=pools.unused_pages, board=board
        )
        self._comparison: Comparison | None = None
        if board is not None and plan.settings.check_ranks == "on":
            self._comparison = Comparison(board, plan.instance)
        padding = [page for page in pools.ledger.first if page]
        self.supply.hold(padding)
        memory.rank.make_ready(list(padding))
        self.wake = Wake()
        self._plan = plan
        self._memory = memory
        self._pools = pools
        self._giver = Giver(plan, memory, pools, self.supply)
        self._limits: Limits | None = None
        self._watchers: Watchers | None = None
        self._step = 0
        self._arrived = 0  # requests that the last step may have admitted
        self._looked = 0.0
        self._owned = 0
        self._rested = False  # since the last request
        self._unsettled = False  # something is on its way
        self._asleep = self._waking = self._has_floor = False
        self._waits, self._waited = 0, 0.0

    def bind(self, tree: Any, limits: Limits) -> None:
        self._pools.bind(tree)
        self._limits = limits
        if self._memory.team.rank:
            return  # the first rank's look for all
        self._watchers = Watchers(self.supply, self.wake.ring, lambda: self._unsettled)

    def note_forward(self, stream: Any) -> None:
        self._giver.forward_stream = stream

    def begin(self, waiting: Sequence[Any], chunked: Any, running: Any) -> None:
        self.supply.begin_turn()
        try:
            acted = self._act_if_due(waiting, chunked, running)
        except (RuntimeError, ValueError):
            if self._comparison is not None:
                self._comparison.explain()
            raise
        if acted and self._comparison is not None:
            self._comparison.check(self._counters())
        self.supply.end_turn(look=acted or self._waking)

    def _act_if_due(self, waiting: Sequence[Any], chunked: Any, running: Any) -> bool:
        if self._asleep and not self._try_to_wake():
            return False
        busy = bool(waiting) or chunked is not None or bool(running.reqs) or self._arrived > 0
        if not busy and self._rested and not self._has_news():
            return False
        self._rested = not busy
        self._act(waiting, chunked, running, busy)
        return True

    def _act(self, waiting: Sequence[Any], chunked: Any, running: Any, busy: bool) -> None:
        self._step += 1
        self._memory.lower_claim()
        self.wake.take()
        self.supply.settle()
        more = self._pools.settle(self._step)
        assert self._limits is not None
        demand = self._pools.see(waiting, chunked, running, self._arrived, self._limits)
        arrived, self._arrived = self._arrived, demand.arriving
        goals = self._goals(demand, running)
        short = self._take(demand, goals, running)
        more |= self._has_grown()
        if waiting and (more or not running.reqs):
            running.batch_is_full = False  # what was not admitted may be now
        lacking = sum(short)
        given = self._giver.give(short, goals[0], self._step, resting=not busy)
        self._tell(lacking, given, busy)
        if lacking and not running.reqs and not arrived:
            self.supply.await_anything()

    def _has_news(self) -> bool:
        """Whether an idle engine has anything to do."""
        return self._unsettled or self.supply.is_called(self._is_due)

    def _is_due(self) -> bool:
        if self.wake.rung:
            return True
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return True

    def _has_grown(self) -> bool:
        before, self._owned = self._owned, self._pools.ledger.pages("owned")
        return self._owned > before

    # --- taking ---

    def _goals(self, demand: Demand, running: Any) -> tuple[Need, Need, Need]:
        """What is to be seen free or evictable; for a whole pass; and for the next one too."""
        if demand.arriving and running.reqs:
            short = self._pools.pages_short("nothing", "first")
            if self.supply.is_beyond_share(short):
                # Others lack memory, and these requests have their share of it.
                return "decode", "decode", "decode"
        return "first", "admit", "ahead"

    def _take(self, demand: Demand, goals: tuple[Need, Need, Need], running: Any) -> list[int]:
        """Asks for what is lacking, and waits within bounds; returns pages that still are, of each
        pool."""
        supply, pools = self.supply, self._pools
        goal, hoped, ahead = goals

        def lacking() -> int:
            return pools.pages_short("nothing", goal)

        def lacking_yet() -> int:
            # Fewer requests in a pass cost more than a short wait does; and what the step takes
            # is not to come from evicting prefixes while memory may be had.
            return max(pools.pages_short("nothing", hoped), pools.pages_short("step", "nothing"))

        if lacking():
            pools.restore(goal)
        short, wanted = lacking(), max(lacking_yet(), pools.want(goal, hoped, ahead))
        if wanted or (demand.step and not supply.pages_for_neighbours()):
            supply.grow(wanted, short)
        if lacking_yet():
            began = time.monotonic()
            supply.await_growth(lacking_yet)
            self._waits, self._waited = self._waits + 1, self._waited + time.monotonic() - began
            short = lacking()
        least: Need = "decode" if running.reqs else goal
        starved = pools.pages_short("nothing", "decode") if running.reqs else short
        if starved and supply.needs_neighbours(starved):
            supply.await_reclaim(lambda: pools.pages_short("nothing", least), short)
        return pools.short("nothing", goal)

    def _tell(self, short: int, given: int, busy: bool) -> None:
        supply = self.supply
        wish = short
        if busy and not given:
            wish = max(wish, supply.reserve_wish())
        supply.publish_wish(wish)
        supply.publish_idle(resting=not busy)
        looking = self._pools.is_looking
        self._unsettled = looking or supply.is_growing()
        if looking and not busy:
            self.wake.ring()  # nothing else brings the next step

    # --- sleep and end ---

    def release(self) -> None:
        """Nothing is in use. All pages but the first go back, and the floor."""
        supply = self.supply
        supply.begin_turn()
        supply.finish_growth()
        self._pools.clear()
        supply.rest()
        self._pools.forget()
        self._arrived = 0
        self._giver.retire(self._pools.retire_all())
        self._memory.drain()
        supply.finish_retirement()
        self._pools.refresh()
        self._pools.suspend(True)
        self._asleep, self._has_floor = True, False
        supply.fall_asleep()
        self._memory.sleep()
        supply.publish_wish(0)
        supply.publish_idle(resting=True)

    def resume(self) -> None:
        """Nothing can be taken before the floor is there again."""
        self.supply.begin_turn()
        self._waking = self._asleep
        self._looked = 0.0
        self._try_to_wake()

    def _try_to_wake(self) -> bool:
        if not self._waking:
            return False
        if self.supply.woke_in_vain():
            self._memory.sleep()
            self._has_floor, self._looked = False, time.monotonic() + _LOOK_S
        if not self._has_floor and time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._has_floor = self._memory.wake()
        if not self.supply.all_are_awake(self._has_floor):
            return False
        self._asleep = self._waking = self._rested = False
        self._pools.suspend(False)
        return True

    def stop(self) -> None:
        if self._watchers is not None:
            self._watchers.stop()

    def _counters(self) -> dict[str, int]:
        """What must be the same at all ranks behind a step."""
        return {
            **self._pools.counters(),
            "step": self._step,
            "requests arriving": self._arrived,
            "pages asked for": self.supply.agreement.outstanding(),
        }

    def report(self) -> dict[str, Any]:
        """Counts of this rank, for whoever looks into the process."""
        ledger, counters = self._pools.ledger, self._memory.rank.counters()
        return {
            "steps": self._step,
            "waits_for_growth": self._waits,
            "waited_ms": round(1e3 * self._waited),
            "owned_pages": ledger.pages("owned"),
            "pages_of_pools": [part.pages("owned") for part in ledger.ledgers],
            "spare_pages": ledger.empty_pages(),
            "num_pages": ledger.num_pages(),
            "mapped_bytes": self._memory.rank.mapped_bytes,
            "page_bytes": self._plan.page_bytes,
            "page_tokens": list(self._pools.page_tokens),
            "floor": self._plan.floor,
            "steps_compared": 0 if self._comparison is None else self._comparison.compared,
            "pages_created": counters["created"],
            "pages_released": counters["released"],
        }
