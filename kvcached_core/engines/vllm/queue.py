"""The block pool's free queue, kept by the ledger.

Has the methods of vLLM's FreeKVCacheBlockQueue, and its meaning of them: what is prepended is dead
content, what is appended holds a prefix. The order is the ledger's: best-fitting page first, then
least recently used prefix. Runs in the engine core's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvcached_core.pool import Ledger

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class LedgerQueue:
    """Free blocks of one pool. `blocks[i]` is the block with id i."""

    def __init__(self, blocks: list[KVCacheBlock], ledger: Ledger) -> None:
        self._blocks = blocks
        self._ledger = ledger
        # Bound methods, since these are the pool's hottest calls.
        self.append_n = ledger.push_cached_blocks
        self.prepend_n = ledger.push_free_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody references, with memory or without."""
        ledger = self._ledger
        return ledger.num_blocks - 1 - ledger.num_used()

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """`n` blocks. Raises ValueError if fewer are available now: reserve first."""
        return self._ledger.pop_blocks(self._blocks, n)

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0]

    def remove(self, block: KVCacheBlock) -> None:
        """A prefix hit: the block is in use from now on."""
        self._ledger.take(block.block_id)

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Blocks that could be popped now, in that order."""
        return [self._blocks[i] for i in self._ledger.free_ids()]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        free = self.get_all_free_blocks()
        start = 0 if cursor is None else free.index(cursor) + 1
        return iter(free[start:])
