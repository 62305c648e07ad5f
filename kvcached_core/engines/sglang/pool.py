"""The tokens of one allocator and its prefix tree, as numbers that a step decides by."""

from __future__ import annotations

from typing import Any

from kvcached_core.engines.sglang.geometry import Geometry
from kvcached_core.engines.sglang.stock import Stock
from kvcached_core.pool import Ledger


class Pool:
    def __init__(self, geometry: Geometry, ledger: Ledger, stock: Stock, allocator: Any) -> None:
        self.geometry = geometry
        self.ledger = ledger
        self.stock = stock
        self.page_tokens = geometry.page_tokens
        self.step_tokens = 0
        """What this step may take."""
        self._allocator = allocator
        self._tree: Any = None

    def bind(self, tree: Any) -> None:
        self._tree = tree

    @property
    def num_listed(self) -> int:
        """Blocks in the allocator's list."""
        return len(self._allocator.free_pages)

    def available(self) -> int:
        """Tokens that can be taken."""
        return int(self._allocator.available_size())

    def evictable(self) -> int:
        """Tokens that only the tree holds."""
        return int(self._tree.evictable_size())

    def evict(self, tokens: int) -> None:
        """Evicts so many, or all there are, by the tree's own order."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams  # noqa: PLC0415

        if tokens > 0:
            self._tree.evict(EvictParams(num_tokens=tokens))

    def pages_short(self, free: int, reachable: int) -> int:
        """Pages without which fewer than `free` tokens can be taken, or fewer than `reachable` can
        or are evictable."""
        self.stock.refresh()
        available = self.available()
        lacking = max(free - available, reachable - available - self.evictable())
        return max(0, -(-lacking // self.page_tokens))

    def pages_beyond(self, tokens: int) -> int:
        """Pages whose worth of tokens can be missed, and so many can still be taken."""
        return max(0, (self.available() - tokens) // self.page_tokens)

    def unused_pages(self) -> int:
        """Pages that no request uses, as far as can be told from counts: at most."""
        stock, block = self.stock, self.geometry.block_tokens
        evictable = self.evictable()
        tokens = self.available() + stock.withheld_blocks * block + evictable - self.step_tokens
        pages = self.ledger.empty_pages() + stock.collectable_pages(self.num_listed)
        return max(0, min(tokens // self.page_tokens, pages + evictable // self.page_tokens))

    # --- what changes the list ---

    def settle(self, step: int) -> bool:
        """Acts on a look that is due; whether it was."""
        was_looking = self.stock.is_looking
        self.stock.refresh()
        self._allocator.free_pages = self.stock.settle(self._allocator.free_pages, step)
        return was_looking and not self.stock.is_looking

    def look(self, pages: int, step: int) -> None:
        self._allocator.free_pages = self.stock.look(self._allocator.free_pages, pages, step)

    def restore(self) -> None:
        self._allocator.free_pages = self.stock.restore(self._allocator.free_pages)

    def clear(self) -> None:
        self._allocator.clear()
