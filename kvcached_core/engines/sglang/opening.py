"""From tensors and allocators to pools: what is made as SGLang makes its allocators."""

from __future__ import annotations

from typing import Any

from kvcached_core.engines.sglang.free_list import PageMap
from kvcached_core.engines.sglang.geometry import Pages
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.pool import FullPool, Pool, WindowPool
from kvcached_core.engines.sglang.pools import Pools
from kvcached_core.engines.sglang.shared_ledger import SharedLedger
from kvcached_core.engines.sglang.stock import Stock
from kvcached_core.pool import Ledger


class Opening:
    """Joins the budget when the first allocator asks for its stock; the pools are complete when the
    last has its own."""

    def __init__(self, memory: Memory, allocator: Any, context: int) -> None:
        """`context`: tokens of the longest request. Raises ValueError, BudgetError."""
        blocks = allocator.size // allocator.page_size + 1
        tensors = memory.tensors
        self._memory = memory
        pages = tensors.pages(allocator.get_kvcache(), blocks, allocator.page_size)
        self.pages: Pages
        self.pages, shapes = memory.agree_on_pages(pages)
        request = min(context, allocator.size) - 1
        self.plan, need = memory.start(self.pages, shapes, request)
        ledgers = [Ledger(pool.num_pages, 1) for pool in self.pages.pools]
        self._ledger = SharedLedger(ledgers, need, self.pages.placed)
        self._pools: list[Pool | None] = [None] * len(ledgers)

    def open(self, allocator: Any) -> Stock:
        """The stock of one of the pools."""
        at = self._memory.tensors.index_of(allocator.get_kvcache())
        geometry, ledger = self.pages.pools[at], self._ledger.ledgers[at]
        blocks = PageMap(geometry.num_blocks, geometry.blocks_per_page, allocator.device)

        def make_ready(pages: list[int]) -> None:
            self._memory.rank.make_ready(self._ledger.ids(at, pages))

        stock = Stock(ledger, blocks, make_ready)
        kind = Pool if len(self._pools) == 1 else (WindowPool, FullPool)[at]
        self._pools[at] = kind(geometry, ledger, stock, allocator)
        return stock

    def pools(self) -> Pools | None:
        """All of them, once they are there."""
        made = [pool for pool in self._pools if pool is not None]
        return Pools(made, self._ledger) if len(made) == len(self._pools) else None
