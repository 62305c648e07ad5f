"""A small storage backend, as somebody else might write one: plain memory, and a bound on use.

``--kv-storage-backend=bounded --kv-storage-config='{"blocks": N}'`` lets requests use N blocks of
those there are. ``fault`` breaks a promise of the interface, for tests of the conformance
kit: ``promises`` says yes to any reservation, ``evicts`` evicts a prefix when asked for one,
``twice`` hands block 1 out whether it is in use or not.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.kv_storage import KVBlockStorage, KVStorageBackend, KVStorageUpdate, KVWorkerStorage

FAULTS = (None, "promises", "evicts", "twice")


class BoundedBlocks(KVBlockStorage):  # type: ignore[misc]
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self._bound = config.get("blocks")
        self._fault = config.get("fault")
        self._pool: Any = None
        self._queue: Any = None
        self._steps = 0

    def bind(self, pool: Any) -> Any:
        self._pool = pool
        self._queue = FreeKVCacheBlockQueue([b for b in pool.blocks if not b.is_null])
        if self._fault == "twice":
            popleft_n = self._queue.popleft_n
            self._queue.popleft_n = lambda n: [*popleft_n(n - 1), pool.blocks[1]] if n else []
        return self._queue

    def num_available_blocks(self) -> int:
        free = int(self._queue.num_free_blocks)
        if self._bound is None:
            return free
        used = self._pool.num_gpu_blocks - 1 - free
        return max(0, min(free, int(self._bound) - used))

    def reserve(self, num_blocks: int) -> bool:
        if self._fault == "evicts" and (cached := self._cached()):
            self._pool.evict_blocks({cached[0]})
        return self._fault == "promises" or num_blocks <= self.num_available_blocks()

    def usage(self) -> float:
        total = self._pool.num_gpu_blocks - 1
        return (total - self._queue.num_free_blocks) / total

    def on_blocks_uncached(self, blocks: Any) -> None:
        pass

    def has_pending_update(self) -> bool:
        return False

    def take_update(self) -> KVStorageUpdate | None:
        return None

    def _cached(self) -> list[int]:
        return [b.block_id for b in self._pool.blocks if b.ref_cnt == 0 and b.block_hash]


class BoundedWorker(KVWorkerStorage):  # type: ignore[misc]
    def allocation_scope(self, kv_cache_config: Any) -> Any:
        return nullcontext()

    def allocate(self, tensor: Any, device: torch.device) -> torch.Tensor:
        return torch.zeros(tensor.size, dtype=torch.int8, device=device)


class Bounded(KVStorageBackend):  # type: ignore[misc]
    name = "bounded"

    @classmethod
    def check_config(cls, vllm_config: Any) -> None:
        config = vllm_config.cache_config.kv_storage_config
        if unknown := set(config) - {"blocks", "fault"}:
            raise ValueError(f"--kv-storage-config: unknown key {min(unknown)!r}")
        if config.get("fault") not in FAULTS:
            raise ValueError(f"--kv-storage-config: fault is none of {FAULTS}")

    @classmethod
    def create_block_storage(cls, vllm_config: Any, kv_cache_config: Any) -> KVBlockStorage:
        return BoundedBlocks(vllm_config.cache_config.kv_storage_config)

    @classmethod
    def create_worker_storage(cls, vllm_config: Any, rank: int) -> KVWorkerStorage:
        return BoundedWorker()
