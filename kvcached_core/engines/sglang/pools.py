"""All pools of an engine, as one memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Demand, Limits, Need
from kvcached_core.engines.sglang.pool import Pool
from kvcached_core.engines.sglang.shared_ledger import SharedLedger
from kvcached_core.instance.supply import PageState


class Pools:
    """Of `ledger`, the members' own, each has the part at its index."""

    def __init__(self, members: Sequence[Pool], ledger: SharedLedger) -> None:
        self.members = tuple(members)
        self.ledger = ledger

    def bind(self, tree: Any) -> None:
        for pool in self.members:
            pool.bind(tree)

    def see(
        self, waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
    ) -> Demand:
        """Reads the step's demand off the requests; returns that of full attention."""
        for pool in self.members:
            pool.see(waiting, chunked, running, arrived, limits)
        return self.members[-1].demand

    def forget(self) -> None:
        """No request is in sight."""
        for pool in self.members:
            pool.demand = Demand()

    @property
    def page_tokens(self) -> tuple[int, ...]:
        return tuple(pool.page_tokens for pool in self.members)

    @property
    def is_looking(self) -> bool:
        return any(pool.stock.is_looking for pool in self.members)

    def suspend(self, suspended: bool) -> None:
        """Whether nothing can be taken."""
        for pool in self.members:
            pool.stock.suspended = suspended

    def refresh(self) -> None:
        for pool in self.members:
            pool.stock.refresh()

    # --- counts ---

    def short(self, free: Need, reachable: Need) -> list[int]:
        """Of each pool, the pages without which fewer than `free` tokens can be taken, or fewer
        than `reachable` can or are evictable; and those that its growth takes others to have."""
        return self.ledger.with_shares([pool.pages_short(free, reachable) for pool in self.members])

    def pages_short(self, free: Need, reachable: Need) -> int:
        return sum(self.short(free, reachable))

    def want(self, goal: Need, hoped: Need, ahead: Need) -> int:
        """Names what the next pages are for: what the step takes, and `goal`; then `hoped` and
        `ahead`. Returns how many that is."""
        lacking = self._most("step", "nothing", self.short("nothing", goal))
        wanted = self._most("nothing", ahead, self._most("nothing", hoped, lacking))
        self.ledger.want(lacking, wanted)
        return sum(wanted)

    def _most(self, free: Need, reachable: Need, others: Sequence[int]) -> list[int]:
        return list(map(max, self.short(free, reachable), others))

    def unused_pages(self) -> int:
        return sum(
            min(pool.unused_pages(), self.ledger.beyond_share(at))
            for at, pool in enumerate(self.members)
        )

    def counters(self) -> dict[str, int]:
        """Of all that is counted here, by name; the ids in the lists as one number."""
        found: dict[str, int] = {}
        for at, pool in enumerate(self.members):
            ledger, stock = pool.ledger, pool.stock
            states: tuple[PageState, ...] = ("preparing", "owned", "retiring", "quarantined")
            counts = {
                "tokens available": pool.available(),
                "tokens evictable": pool.evictable(),
                "tokens without memory": int(pool.allocator.unbacked_size()),
                "blocks listed": pool.num_listed,
                "blocks withheld": stock.withheld_blocks,
                "tokens a step takes": pool.demand.step,
                "spare pages": ledger.empty_pages(),
                "used pages": ledger.num_used(),
                "listed ids": zlib.crc32(pool.allocator.free_pages.cpu().numpy()),
                **{f"{state} pages": ledger.pages(state) for state in states},
            }
            found |= {f"{name} of pool {at}": count for name, count in counts.items()}
        return found

    # --- what changes the lists ---

    def settle(self, step: int) -> bool:
        """Acts on looks that are due; whether any was."""
        return any([pool.settle(step) for pool in self.members])

    def restore(self, goal: Need) -> None:
        """Calls off looks of the pools that are short themselves."""
        for pool in self.members:
            if pool.pages_short("nothing", goal):
                pool.restore()

    def clear(self) -> None:
        for pool in self.members:
            pool.clear()

    def retire(self, pool: int, pages: int) -> list[int]:
        """So many spare pages of the pool, or all it can miss, on their way; their ids."""
        most = min(pages, self.ledger.beyond_share(pool))
        gone = self.ledger.ledgers[pool].retire_empty(max(0, most))
        self.members[pool].stock.refresh()
        return self.ledger.ids(pool, gone)

    def retire_all(self) -> list[int]:
        """All spare pages; nothing is in use."""
        ledgers = enumerate(self.ledger.ledgers)
        return [
            page
            for at, ledger in ledgers
            for page in self.ledger.ids(at, ledger.retire_empty(ledger.num_pages()))
        ]
