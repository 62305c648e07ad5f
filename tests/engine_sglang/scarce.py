"""A backend for tests whose slots lose and regain memory on a schedule, as far as anyone can tell.

It maps nothing: some free slots count as without memory, and cannot be taken. All of them can at
first; from pass `after` on for `passes` passes no more than `floor` tokens may be in use, and so in
turns. Needs no device; the scheduler's decisions are what it tests.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, ClassVar

from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.kv_storage import KVStorageBackend

KEYS = {"floor": 1024, "after": 30, "passes": 40}


class ScarceAllocator(TokenToKVPoolAllocator):  # type: ignore[misc]
    withheld = 0

    def available_size(self) -> int:
        return int(super().available_size()) - self.withheld

    def unbacked_size(self) -> int:
        return self.withheld

    def alloc(self, need_size: int) -> Any:
        return super().alloc(need_size) if need_size <= self.available_size() else None


class Scarce(KVStorageBackend):  # type: ignore[misc]
    name = "scarce"
    preallocates = False
    checked: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def check_server_args(cls, server_args: Any) -> None:
        for key in server_args.kv_storage_config or {}:
            if key not in KEYS:
                raise ValueError(f"--kv-storage-config: unknown key {key!r}")
        seen = {"page_size": server_args.page_size, "attention": server_args.attention_backend}
        cls.checked.append(seen)

    def __init__(self, server_args: Any, *, device: str, gpu_id: int) -> None:
        self._keys = {**KEYS, **(server_args.kv_storage_config or {})}
        self._calls: Counter[str] = Counter()
        self._order: list[str] = []
        self._buffers: list[tuple[list[int], int]] = []
        self._passes = self._least = 0
        self._most_waiting = self._most_chunked = self._most_running = 0
        self._allocator: ScarceAllocator | None = None
        self._tree: Any = None
        self._budget: dict[str, float] = {}
        self._pipe = os.pipe()

    def _called(self, name: str) -> None:
        self._calls[name] += 1
        if not self._order or self._order[-1] != name:
            self._order.append(name)

    def kv_budget_gb(self, profiled_gb: float, **given: Any) -> float:
        self._called("kv_budget_gb")
        self._budget = {k: given[k] for k in ("available_gb", "before_load_gb")}
        return profiled_gb

    def new_buffer(self, owner: Any, shape: Any, **given: Any) -> Any:
        self._called("new_buffer")
        self._buffers.append((list(shape), given.get("tokens_per_row", 1)))
        return super().new_buffer(owner, shape, **given)

    def token_allocator_cls(self) -> Any:
        self._called("token_allocator_cls")
        return ScarceAllocator

    def max_request_tokens(self, default: int) -> int:
        self._called("max_request_tokens")
        return default - 7

    def bind(self, params: Any, tree_cache: Any) -> None:
        self._called("bind")
        self._allocator, self._tree = params.token_to_kv_pool_allocator, tree_cache

    def wakeup_fd(self) -> int:
        self._called("wakeup_fd")
        return self._pipe[0]

    def begin_step(self, waiting: Any, chunked: Any, running: Any) -> None:
        if self._calls["begin_step"] < 2:
            self._order.append("begin_step")
        self._calls["begin_step"] += 1
        self._most_waiting = max(self._most_waiting, len(waiting))
        self._most_chunked += chunked is not None
        self._most_running = max(self._most_running, len(running.reqs))
        self._settle()

    def _settle(self) -> None:
        allocator = self._allocator
        assert allocator is not None
        into = self._passes - self._keys["after"]
        short = into >= 0 and into // self._keys["passes"] % 2 == 0
        allocator.withheld = allocator.size - self._keys["floor"] if short else 0
        lacking = -allocator.available_size()
        if lacking > 0:
            self._tree.evict(EvictParams(num_tokens=lacking))
        self._least = min(self._least, allocator.available_size())

    def on_forward(self, forward_ct: int, forward_stream: Any) -> None:
        self._called("on_forward")
        assert forward_ct == self._passes + 1, "a pass is missing"
        assert forward_stream is not None
        self._passes = forward_ct

    def release(self) -> None:
        self._called("release")
        assert self._allocator is not None
        assert len(self._allocator.free_pages) == self._allocator.size, "not flushed before"

    def resume(self) -> None:
        self._called("resume")

    def report(self) -> dict[str, Any]:
        return {
            "calls": self._calls,
            "order": self._order[:12],
            "buffers": self._buffers,
            "budget": self._budget,
            "least": self._least,
            "most_waiting": self._most_waiting,
            "most_running": self._most_running,
            "chunked": self._most_chunked,
        }
