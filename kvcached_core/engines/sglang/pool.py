"""The tokens of one allocator and its prefix tree, as numbers that a step decides by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcached_core.engines.sglang.demand import Demand, Limits, Need, demand_of, demand_of_windows
from kvcached_core.engines.sglang.geometry import Geometry
from kvcached_core.engines.sglang.stock import Stock
from kvcached_core.pool import Ledger


class Pool:
    """Of plain attention; the pools of a model with sliding windows are those below."""

    def __init__(self, geometry: Geometry, ledger: Ledger, stock: Stock, allocator: Any) -> None:
        self.geometry = geometry
        self.ledger = ledger
        self.stock = stock
        self.page_tokens = geometry.page_tokens
        self.demand = Demand()
        """Of this step."""
        self.allocator = allocator
        self._tree: Any = None

    def bind(self, tree: Any) -> None:
        self._tree = tree

    def see(
        self, waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
    ) -> None:
        """Reads the step's demand off the requests."""
        self.demand = demand_of(waiting, chunked, running, arrived, limits)

    @property
    def token_bytes(self) -> float:
        return sum(self.geometry.extent_bytes) / self.page_tokens

    @property
    def num_listed(self) -> int:
        """Blocks in the allocator's list."""
        return len(self.allocator.free_pages)

    def available(self) -> int:
        """Tokens that can be taken."""
        return int(self.allocator.available_size())

    def evictable(self) -> int:
        """Tokens that only the tree holds."""
        return int(self._tree.evictable_size())

    def evict(self, tokens: int) -> None:
        """Evicts so many, or all there are, by the tree's own order."""
        self._evict(num_tokens=tokens)

    def _evict(self, **tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams  # noqa: PLC0415

        if any(count > 0 for count in tokens.values()):
            self._tree.evict(EvictParams(**tokens))

    def pages_short(self, free: Need, reachable: Need) -> int:
        """Pages without which fewer than `free` tokens can be taken, or fewer than `reachable` can
        or are evictable."""
        self.stock.refresh()
        available = self.available()
        lacking: int = max(
            getattr(self.demand, free) - available,
            getattr(self.demand, reachable) - available - self.evictable(),
        )
        return max(0, -(-lacking // self.page_tokens))

    def pages_beyond(self, tokens: int) -> int:
        """Pages whose worth of tokens can be missed, and so many can still be taken."""
        return max(0, (self.available() - tokens) // self.page_tokens)

    def pages_to_spare(self, reachable: Need) -> int:
        """Pages whose worth of tokens can be missed, and so many can still be taken or are
        evictable."""
        tokens = self.available() + self.evictable() - getattr(self.demand, reachable)
        return max(0, int(tokens) // self.page_tokens)

    def unused_pages(self) -> int:
        """Pages that no request uses, as far as can be told from counts: at most."""
        stock, block = self.stock, self.geometry.block_tokens
        evictable = self.evictable()
        tokens = self.available() + stock.withheld_blocks * block + evictable - self.demand.step
        pages = self.ledger.empty_pages() + stock.collectable_pages(self.num_listed)
        return max(0, min(tokens // self.page_tokens, pages + evictable // self.page_tokens))

    # --- what changes the list ---

    def settle(self, step: int) -> bool:
        """Acts on a look that is due; whether it was."""
        was_looking = self.stock.is_looking
        self.stock.refresh()
        self.allocator.relist(self.stock.settle(self.allocator.free_pages, step))
        return was_looking and not self.stock.is_looking

    def look(self, pages: int, step: int) -> None:
        self.allocator.relist(self.stock.look(self.allocator.free_pages, pages, step))

    def restore(self) -> None:
        self.allocator.relist(self.stock.restore(self.allocator.free_pages))

    def clear(self) -> None:
        self.allocator.clear()


class FullPool(Pool):
    """Of the layers that see all, where others see a window."""

    def evictable(self) -> int:
        return int(self._tree.full_evictable_size())


class WindowPool(Pool):
    """Of the layers that see a window. What is evicted here alone leaves prefixes that longer ones
    go on from."""

    def see(
        self, waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
    ) -> None:
        self.demand = demand_of_windows(waiting, chunked, running, arrived, limits)

    def evictable(self) -> int:
        return int(self._tree.swa_evictable_size())

    def evict(self, tokens: int) -> None:
        self._evict(swa_num_tokens=tokens)
