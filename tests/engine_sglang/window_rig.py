"""The rig with pools of sliding windows and of full attention, and the tree that goes with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache import kv_storage
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

from engine_sglang.rig import PAGE, Rig, plain
from kvcached_core.engines.sglang.backend import KvcachedBackend

WINDOW = 32
WINDOWS_PAGE, FULL_PAGE = 64, 128  # tokens: two layers and one


class WindowRig(Rig):
    """Pages of 64 tokens of windows, or of 128 of full attention."""

    def __init__(
        self,
        directory: Path,
        *,
        slots: int = 2047,
        windows: int = 1023,
        chunk: int = 512,
        first: str = "swa_kv_pool",
        **settings: Any,
    ) -> None:
        """`first`: which pool is made first; releases of SGLang differ in that."""
        given = {"budget": "rig", "capacity": 32 * PAGE, "page_size": PAGE, "name": "one"}
        given |= {"budget_dir": str(directory), "reserve_wait_ms": 1000}
        model = SimpleNamespace(
            context_len=200,
            is_hybrid_swa=True,
            sliding_window_size=WINDOW,
            attention_chunk_size=None,
            full_attention_layer_ids=[2],
        )
        args = SimpleNamespace(
            kv_storage_config={**given, **settings},
            device="cpu",
            attention_backend="triton",
            prefill_attention_backend=None,
            decode_attention_backend=None,
            chunked_prefill_size=chunk,
            max_prefill_tokens=4096,
            schedule_conservativeness=1.0,
            disable_hybrid_swa_memory=False,
            get_model_config=lambda: model,
        )
        self.backend = KvcachedBackend(args, device="cpu", gpu_id=0)
        kv_storage._active = kv_storage._static
        self.pool = SWAKVPool(
            slots,
            windows,
            1,
            torch.float32,
            2,
            32,
            [0, 1],
            [2],
            "cpu",
            enable_kv_cache_copy=False,
        )
        kv_storage._active = self.backend
        sizes = {"swa_kv_pool": (windows, 2), "full_kv_pool": (slots, 1)}
        for name in sorted(sizes, key=first.__ne__):
            setattr(self.pool, name, plain(sizes[name][0], layers=sizes[name][1]))
        for pool in (self.pool.swa_kv_pool, self.pool.full_kv_pool):
            for tensor in (*pool.k_buffer, *pool.v_buffer):
                tensor[0] = 1.0  # as warm-ups in constructors do
        self.allocator = SWATokenToKVPoolAllocator(
            slots, windows, 1, torch.float32, "cpu", self.pool, False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=SimpleNamespace(size=64, device="cpu"),
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
            sliding_window_size=WINDOW,
        )
        self.tree = SWARadixCache(params)
        self.backend.bind(params, self.tree)
        self.stepper = self.backend._stepper
        self.running = SimpleNamespace(reqs=[], batch_is_full=False)
        self.next_token = 0

    def take(self, tokens: int) -> torch.Tensor:
        """As SGLang does, which evicts what is lacking."""
        evict_from_tree_cache(self.tree, tokens)
        return super().take(tokens)

    def windows_of(self, slots: torch.Tensor) -> torch.Tensor:
        return self.allocator.translate_loc_from_full_to_swa(slots)

    def write(self, slots: torch.Tensor) -> None:
        for pool, mine in (
            (self.pool.full_kv_pool, slots),
            (self.pool.swa_kv_pool, self.windows_of(slots)),
        ):
            for tensor in (*pool.k_buffer, *pool.v_buffer):
                tensor[mine] += 1

    def cache(self, slots: torch.Tensor) -> None:
        tokens = list(range(self.next_token, self.next_token + len(slots)))
        self.next_token += len(slots)
        key = RadixKey(tokens, None)
        self.tree.insert(InsertParams(key=key, value=slots))

    def owned(self) -> list[int]:
        """Pages of the windows' pool, and of the other."""
        return [ledger.pages("owned") for ledger in self.stepper._pools.ledger.ledgers]

    def missing(self) -> tuple[int, int]:
        """Slots of full attention and of windows that are in no account: leaked."""
        a, tree = self.allocator, self.tree
        full = a.full_available_size() + a.unbacked_size() + tree.full_evictable_size()
        windows = a.swa_available_size() + a.swa_unbacked_size() + tree.swa_evictable_size()
        return a.size_full - full, a.size_swa - windows
