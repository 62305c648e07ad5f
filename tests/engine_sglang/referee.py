"""Watches any storage backend in a running scheduler, and writes down each breach of the interface.

It knows of a backend what SGLang knows: its class, and the interface's methods. For page size 1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

POISON = 1e4
EVERY = 5  # steps from one poisoning to the next


class Referee:
    """Stands between SGLang and the backend of this process, from before it is made.

    With `poison` all slots that are free are overwritten between steps: a backend whose unused
    memory cannot be accessed does not survive that, and nothing may be in flight then (no overlap).
    Before pass `harm`, if not 0, the slots of a page that most requests share are overwritten.
    """

    def __init__(self, backend: Any, *, poison: bool = False, harm: int = 0) -> None:
        self.breaches: list[str] = []
        self.calls: Counter[str] = Counter()
        self.poisoned = 0
        self._poison, self._harm = poison, harm
        self._buffers: list[Any] = []
        self._allocator: Any = None
        self._held: Any = None
        self._passes = 0
        self._steps = itertools.count(1)
        for name in ("new_buffer", "token_allocator_cls", "bind", "begin_step", "on_forward"):
            self._wrap(backend, name, getattr(self, f"_{name}"))
        for name in ("kv_budget_gb", "max_request_tokens", "release", "resume", "close"):
            self._wrap(backend, name, lambda call, *args, **kwargs: call())

    def report(self) -> dict[str, Any]:
        """As of now; at rest."""
        from kvcached_core.vmm import readable_bytes

        spans = [_span(buffer) for buffer in self._buffers]
        readable = sum(readable_bytes(base, size) for base, size in spans)
        return {
            "breaches": self.breaches,
            "calls": self.calls,
            "poisoned": self.poisoned,
            "bytes": sum(size for _, size in spans),
            "readable": readable,
        }

    # --- inside ---

    def _expect(self, holds: bool, what: str) -> None:
        if not holds and len(self.breaches) < 20:
            self.breaches.append(what)

    def _wrap(self, cls: Any, name: str, around: Any) -> None:
        original = getattr(cls, name)

        def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return around(lambda: original(this, *args, **kwargs), this, *args, **kwargs)

        setattr(cls, name, wrapped)

    def _new_buffer(self, call: Any, _: Any, owner: Any, shape: Any, **given: Any) -> Any:
        buffer = call()
        self._expect(list(buffer.shape) == list(shape), f"{list(buffer.shape)} for {list(shape)}")
        self._expect(buffer.dtype == given["dtype"], f"{buffer.dtype} for {given['dtype']}")
        self._expect(not buffer[0].any(), "the memory of padding is not zero")
        self._buffers.append(buffer)
        return buffer

    def _token_allocator_cls(self, call: Any, _: Any) -> Any:
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

        cls = call()
        self._expect(issubclass(cls, TokenToKVPoolAllocator), f"{cls} is no allocator of tokens")
        return cls

    def _bind(self, call: Any, _: Any, params: Any, tree: Any) -> Any:
        import torch

        self._expect(self._allocator is None, "bind is called twice")
        allocator = self._allocator = params.token_to_kv_pool_allocator
        self._held = torch.zeros(allocator.size + 1, dtype=torch.bool)
        self._expect(not allocator.need_sort, "slots are sorted: not judged here")
        for name in ("alloc", "free", "clear"):
            self._stand_before(allocator, name)
        return call()

    def _stand_before(self, allocator: Any, name: str) -> None:
        original, around = getattr(allocator, name), getattr(self, f"_{name}")

        def standing(*args: Any) -> Any:
            self.calls[name] += 1
            return around(lambda: original(*args), *args)

        setattr(allocator, name, standing)

    def _alloc(self, call: Any, need: int) -> Any:
        before, held = self._allocator.available_size(), int(self._held.sum())
        slots = call()
        if slots is None:
            self._expect(before < need, f"{need} of {before} tokens could not be taken")
            return None
        self._expect(len(slots) == need, f"{len(slots)} slots for {need}")
        after = self._allocator.available_size()
        self._expect(after == before - need, f"{before} - {need} available are {after}")
        self._held[slots] = True
        self._expect(int(self._held.sum()) == held + need, "a slot is handed out twice")
        self._expect(not self._held[0], "padding's slot is handed out")
        return slots

    def _free(self, call: Any, slots: Any) -> Any:
        self._held[slots] = False
        return call()

    def _clear(self, call: Any) -> Any:
        self._held[:] = False
        return call()

    def _begin_step(self, call: Any, *_: Any) -> Any:
        answer = call()
        allocator = self._allocator
        counted = allocator.available_size() + allocator.unbacked_size()
        free = allocator.size - int(self._held.sum())
        self._expect(counted == free, f"{free} slots are free, counted are {counted}")
        if self._poison and next(self._steps) % EVERY == 0:
            self._poison_unused()
        return answer

    def _on_forward(self, call: Any, _: Any, forward_ct: int, stream: Any) -> Any:
        self._expect(forward_ct == self._passes + 1, f"pass {forward_ct} behind {self._passes}")
        self._passes = forward_ct
        return call()

    def _poison_unused(self) -> None:
        unused = ~self._held
        unused[0] = False
        self.poisoned += int(unused.sum())
        for buffer in self._buffers:
            buffer[: len(unused)][unused] = POISON

    def harm_before(self, scheduler_cls: Any) -> None:
        """Arms the harm."""
        run_batch, passes = scheduler_cls.run_batch, itertools.count(1)

        def harming(scheduler: Any, batch: Any, *more: Any) -> Any:
            if next(passes) == self._harm:
                self._overwrite(scheduler, batch)
            return run_batch(scheduler, batch, *more)

        scheduler_cls.run_batch = harming

    def _overwrite(self, scheduler: Any, batch: Any) -> None:
        """What a request of the batch holds."""
        from engine_sglang.observe import committed_slots

        slots = max((committed_slots(scheduler, request) for request in batch.reqs), key=len).long()
        for buffer in self._buffers:
            buffer[slots] = 3.0


def _span(tensor: Any) -> tuple[int, int]:
    """Address and bytes from its first element to its last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()
