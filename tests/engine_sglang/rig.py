"""An elastic backend with SGLang's own pool, allocator and tree, stepped by hand. No engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache import kv_storage
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from kvcached_core.engines.sglang.backend import KvcachedBackend

PAGE = 64 << 10
TOKEN = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, numbers, bytes
PER_PAGE = PAGE // TOKEN


def plain(slots: int, dtype: torch.dtype = torch.float32, layers: int = 2) -> Any:
    return MHATokenToKVPool(
        size=slots,
        page_size=1,
        dtype=dtype,
        head_num=2,
        head_dim=32,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
    )


class Rig:
    """Pages of 64 tokens. `slots` is the space of ids."""

    def __init__(
        self,
        directory: Path,
        *,
        slots: int = 2047,
        context: int = 200,
        pool: Callable[[int], Any] = plain,
        **settings: Any,
    ) -> None:
        given = {"budget": "rig", "capacity": 32 * PAGE, "page_size": PAGE, "name": "one"}
        given |= {"budget_dir": str(directory), "reserve_wait_ms": 1000}
        args = SimpleNamespace(
            kv_storage_config={**given, **settings},
            device="cpu",
            attention_backend="torch_native",
            prefill_attention_backend=None,
            decode_attention_backend=None,
            chunked_prefill_size=512,
            max_prefill_tokens=4096,
            schedule_conservativeness=1.0,
            disable_hybrid_swa_memory=False,
            get_model_config=lambda: SimpleNamespace(context_len=context),
        )
        self.backend = KvcachedBackend(args, device="cpu", gpu_id=0)
        self.activate()
        self.pool = pool(slots)
        cls = self.backend.token_allocator_cls()
        self.allocator = cls(
            slots, dtype=torch.float32, device="cpu", kvcache=self.pool, need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=SimpleNamespace(size=64, device="cpu"),
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
        )
        self.tree = RadixCache(params)
        self.backend.bind(params, self.tree)
        self.stepper = self.backend._stepper
        self.running = SimpleNamespace(reqs=[], batch_is_full=False)
        self.next_token = 0

    def activate(self) -> None:
        """SGLang's classes are to find this backend."""
        kv_storage._active = self.backend

    def step(self, waiting: list[Any] | None = None, steps: int = 1) -> None:
        for _ in range(steps):
            self.backend.begin_step(waiting or [], None, self.running)

    def rest(self) -> None:
        """Idle steps until nothing is on its way, and what was retired is released."""
        self.step(steps=8)
        self.backend._memory.drain()
        self.step()

    def available(self) -> int:
        return int(self.allocator.available_size())

    def take(self, tokens: int) -> torch.Tensor:
        taken = self.allocator.alloc(tokens)
        assert taken is not None
        return taken

    def write(self, slots: torch.Tensor) -> None:
        """Touches every slot in every tensor: a fault if one has no memory."""
        for tensor in self.tensors():
            tensor[slots] += 1

    def tensors(self) -> list[torch.Tensor]:
        names = ("k_buffer", "v_buffer", "kv_buffer")
        return [tensor for name in names for tensor in getattr(self.pool, name, [])]

    def cache(self, slots: torch.Tensor) -> None:
        """A prefix of its own that only the tree holds."""
        tokens = list(range(self.next_token, self.next_token + len(slots)))
        self.next_token += len(slots)
        self.tree.insert(InsertParams(key=RadixKey(tokens, None), value=slots))

    def mapped(self) -> int:
        return int(self.backend._memory.rank.mapped_bytes)

    def close(self) -> None:
        self.backend.close(graceful=True)
        kv_storage._active = kv_storage._static


def request(prompt: int, answer: int) -> Any:
    return SimpleNamespace(
        origin_input_ids=[0] * prompt,
        output_ids=[],
        prefix_indices=[],
        sampling_params=SimpleNamespace(max_new_tokens=answer),
    )
