"""Looks into a running scheduler: ids of slots handed out, pools, what a backend saw.

`run_scheduler_process` takes the place of SGLang's own in the scheduler's process, and starts it
once it can be looked into. What was seen comes with the scheduler's internal state.
"""

from __future__ import annotations

import os
from typing import Any

# Requests that must have come before the first one is scheduled, so that batches do not depend on
# how fast they come.
GATE = "KVCACHED_TEST_GATE"


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers import scheduler

    inside = Inside()
    inside.watch_allocators()
    inside.watch_scheduler(scheduler.Scheduler)
    scheduler.run_scheduler_process(*args, **kwargs)


class Inside:
    def __init__(self) -> None:
        self.slots: list[Any] = []
        self.parked = 0
        self._gate = int(os.environ[GATE])

    def watch_allocators(self) -> None:
        """Records, in order, every slot that an allocator of the static backend hands out."""
        from sglang.srt.managers.schedule_policy import PrefillAdder
        from sglang.srt.mem_cache.allocator import (
            PagedTokenToKVPoolAllocator,
            TokenToKVPoolAllocator,
        )

        for cls, names in (
            (TokenToKVPoolAllocator, ("alloc",)),
            (PagedTokenToKVPoolAllocator, ("alloc", "alloc_extend", "alloc_decode")),
        ):
            for name in names:
                setattr(cls, name, self._recording(getattr(cls, name)))
        add_chunked_req = PrefillAdder.add_chunked_req

        def counting(adder: Any, req: Any) -> Any:
            left = add_chunked_req(adder, req)
            self.parked += req not in adder.can_run_list
            return left

        PrefillAdder.add_chunked_req = counting

    def _recording(self, method: Any) -> Any:
        def recording(allocator: Any, *args: Any, **kwargs: Any) -> Any:
            taken = method(allocator, *args, **kwargs)
            if taken is not None:
                self.slots.append(taken)
            return taken

        return recording

    def watch_scheduler(self, cls: Any) -> None:
        prefill, state = cls.get_new_batch_prefill, cls.get_internal_state

        def gated(scheduler: Any) -> Any:
            if len(scheduler.waiting_queue) < self._gate:
                return None
            self._gate = 0
            return prefill(scheduler)

        def telling(scheduler: Any, request: Any) -> Any:
            output = state(scheduler, request)
            output.internal_state["observed"] = self._report(scheduler)
            return output

        cls.get_new_batch_prefill, cls.get_internal_state = gated, telling

    def _report(self, scheduler: Any) -> dict[str, Any]:
        allocator = scheduler.token_to_kv_pool_allocator
        pool = allocator.get_kvcache()
        buffers = [*pool.k_buffer, *pool.v_buffer]
        return {
            "slots": [slot for taken in self.slots for slot in taken.tolist()],
            "parked": self.parked,
            "allocator": _name_of(allocator),
            "pool": _name_of(pool),
            "tree": _name_of(scheduler.tree_cache),
            "tensors": [[list(t.shape), list(t.stride()), str(t.dtype)] for t in buffers],
            "offsets": [t.storage_offset() for t in buffers],
            "free": allocator.free_pages.tolist(),
            "max_total_num_tokens": scheduler.max_total_num_tokens,
            "max_req_len": scheduler.max_req_len,
            "forward_ct": scheduler.forward_ct,
            "backend": _backend_report(),
        }


def _name_of(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _backend_report() -> Any:
    """What the backend in this process tells about itself, if it does."""
    try:
        from sglang.srt.mem_cache.kv_storage import get_kv_storage
    except ModuleNotFoundError:  # unpatched
        return None
    report = getattr(get_kv_storage(), "report", None)
    return report() if report is not None else None
