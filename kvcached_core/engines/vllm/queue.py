"""The block pool's free queue, kept by the ledger.

Has the methods of vLLM's FreeKVCacheBlockQueue, and its meaning of them: what is prepended is dead
content, what is appended holds a prefix. The order is the ledger's: best-fitting page first, then
least recently used prefix. Runs in the engine core's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvcached_core.pool import BlockQueue, Ledger

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class LedgerQueue(BlockQueue["KVCacheBlock"]):
    """Free blocks of one pool; what a step calls is in C++. `popleft_n` raises ValueError if fewer
    are available now: reserve first."""

    def __init__(
        self,
        blocks: list[KVCacheBlock],
        ledger: Ledger,
        before_evict: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(blocks, ledger, before_evict)
        self._all = blocks
        self._ledger = ledger

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0]

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Blocks that could be popped now, in that order."""
        return [self._all[i] for i in self._ledger.free_ids()]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """O(free blocks): only vLLM's offloading asks, which is refused at start."""
        free = self.get_all_free_blocks()
        start = 0 if cursor is None else free.index(cursor) + 1
        return iter(free[start:])
