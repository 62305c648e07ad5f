"""Watches any storage backend in a running engine, and writes down each breach of the interface.

For the in-process shape (VLLM_ENABLE_V1_MULTIPROCESSING=0): both halves are in this process. It
knows of a backend what vLLM knows: its name, and the interface's methods.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

POISON = 1e4


class Referee:
    """Stands between vLLM and the halves that backend `name` makes from now on.

    With `poison` whatever no request and no prefix holds is overwritten between steps: a backend
    whose unused memory cannot be accessed does not survive that. Before step `harm`, if given, the
    block that most running requests read is overwritten; `owners` are they.
    """

    def __init__(self, name: str, *, poison: bool = False, harm: int | None = None) -> None:
        from vllm.v1.kv_storage import get_kv_storage_backend

        self.breaches: list[str] = []
        self.calls: dict[str, int] = {}
        self.poisoned = 0
        self.ranges: list[tuple[int, int]] = []  # of the tensors: address, bytes
        self.owners: list[str] = []
        self._poison, self._harm = poison, harm
        self._pool: Any = None
        self._held: set[int] = set()
        self._epochs = {"take_update": 0, "begin_step": 0}
        self._steps = 0
        self._llm: Any = None
        cache: Any = SimpleNamespace(kv_storage_backend=name)
        backend: Any = get_kv_storage_backend(SimpleNamespace(cache_config=cache))
        for method, watch in (
            ("create_block_storage", self._watch_block),
            ("create_worker_storage", self._watch_worker),
        ):
            setattr(backend, method, self._seen_by(getattr(backend, method), watch))

    def arm(self, llm: Any) -> None:
        """The engine has started; from now on memory is looked at."""
        self._llm = llm
        self._check_tensors()

    def report(self) -> dict[str, Any]:
        """At rest, before the engine's end."""
        from kvcached_core.vmm import readable_bytes

        self._check_tensors()
        readable = sum(readable_bytes(base, size) for base, size in self.ranges)
        return {"bytes": sum(size for _, size in self.ranges), "readable": readable}

    def result(self) -> dict[str, Any]:
        """After it."""
        names = ("breaches", "calls", "poisoned", "owners")
        return {name: getattr(self, name) for name in names}

    # --- inside ---

    def _breach(self, what: str) -> None:
        if len(self.breaches) < 20:
            self.breaches.append(what)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self._breach(what)

    def _seen_by(self, create: Any, watch: Callable[[Any], None]) -> Any:
        def creating(*args: Any, **kwargs: Any) -> Any:
            made = create(*args, **kwargs)
            if made is not None:
                watch(made)
            return made

        return creating

    def _wrap(self, thing: Any, name: str, around: Any) -> None:
        original = getattr(thing, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return around(functools.partial(original, *args, **kwargs), *args)

        setattr(thing, name, wrapped)

    # --- the half beside the scheduler ---

    def _watch_block(self, storage: Any) -> None:
        self._storage = storage
        self._available = storage.num_available_blocks
        self._wrap(storage, "bind", self._bind)
        for name in ("num_available_blocks", "admit", "reserve"):
            self._wrap(storage, name, functools.partial(self._without_eviction, name))
        self._wrap(storage, "take_update", self._take_update)
        self._wrap(storage, "usage", self._usage)
        self._wrap(storage, "shutdown", lambda call: call())

    def _bind(self, call: Any, pool: Any) -> Any:
        self._expect(self._pool is None, "bind is called twice")
        self._pool = pool
        queue = call()
        for name in ("popleft_n", "append", "append_n", "prepend_n", "remove"):
            self._wrap(queue, name, getattr(self, f"_{name}"))
        return queue

    def _without_eviction(self, name: str, call: Any, *args: Any) -> Any:
        before = len(self._pool.cached_block_hash_to_block._cache)
        answer = call()
        after = len(self._pool.cached_block_hash_to_block._cache)
        self._expect(before == after, f"{name} evicts {before - after} prefixes")
        if name == "reserve" and answer:
            available = self._available()
            self._expect(available >= args[0], f"reserved {args[0]}, available are {available}")
        return answer

    def _usage(self, call: Any) -> Any:
        answer = call()
        self._expect(0 <= answer <= 1, f"usage is {answer}")
        return answer

    def _take_update(self, call: Any) -> Any:
        update = call()
        self._check_epoch("take_update", update)
        return update

    def _check_epoch(self, where: str, update: Any) -> None:
        if update is not None:
            self._epochs[where] += 1
            self._expect(update.epoch == self._epochs[where], f"{where}: epoch {update.epoch}")

    def _popleft_n(self, call: Any, number: int) -> Any:
        blocks = call()
        ids = {block.block_id for block in blocks}
        self._expect(len(ids) == number, f"{len(ids)} different blocks in place of {number}")
        self._expect(not ids & self._held, f"handed out twice: {sorted(ids & self._held)}")
        self._expect(0 not in ids, "the null block is handed out")
        self._held |= ids
        return blocks

    def _append_n(self, call: Any, blocks: Any) -> Any:
        blocks = list(blocks)
        self._held -= {block.block_id for block in blocks}
        return call.func(blocks)

    _prepend_n = _append_n

    def _append(self, call: Any, block: Any) -> Any:
        self._held.discard(block.block_id)
        return call()

    def _remove(self, call: Any, block: Any) -> Any:
        self._held.add(block.block_id)
        return call()

    # --- the half in the worker ---

    def _watch_worker(self, storage: Any) -> None:
        self._worker = storage
        self._wrap(storage, "allocate", self._allocate)
        self._wrap(storage, "allocation_scope", self._scope)
        self._wrap(storage, "on_warmup_done", lambda call: call())
        self._wrap(storage, "begin_step", self._begin_step)
        self._wrap(storage, "end_step", lambda call: call())
        self._wrap(storage, "shutdown", lambda call: call())

    def _allocate(self, call: Any, asked: Any, device: Any) -> Any:
        import torch

        tensor = call()
        self._expect(tensor.dtype == torch.int8 and tensor.dim() == 1, "not a vector of int8")
        self._expect(tensor.numel() == asked.size, f"{tensor.numel()} bytes for {asked.size}")
        self._expect(tensor.device == device, f"on {tensor.device}, not {device}")
        self._expect(tensor.storage_offset() == 0, "not a storage of its own")
        base = tensor.data_ptr()
        self._expect(base not in {b for b, _ in self.ranges}, "one storage for two tensors")
        self.ranges.append((base, tensor.numel()))
        return tensor

    @contextmanager
    def _scope(self, call: Any, *args: Any) -> Any:
        from kvcached_core.vmm import readable_bytes

        with call():
            yield
        self._expect(bool(self.ranges), "the runner's tensors are not the backend's")
        for base, _ in self.ranges:
            self._expect(readable_bytes(base, 1) == 1, "the null block has no memory")

    def _begin_step(self, call: Any, output: Any) -> Any:
        self._check_epoch("begin_step", output.kv_storage_update)
        answer = call()
        if self._llm is None or not output.total_num_scheduled_tokens:
            return answer
        self._steps += 1
        if self._poison:
            self._poison_unused()
        if self._steps == self._harm:
            self._overwrite_busiest()
        return answer

    def _check_tensors(self) -> None:
        """Each tensor that the runner uses lies in one that the backend made."""
        ends = [(base, base + size) for base, size in self.ranges]
        for tensor in self._caches():
            at = tensor.data_ptr()
            inside = any(base <= at < end for base, end in ends)
            self._expect(inside, "a KV tensor is not of the backend")

    def _caches(self) -> list[Any]:
        from engine.observe import core

        return list(core(self._llm).model_executor.driver_worker.worker.model_runner.kv_caches)

    def _poison_unused(self) -> None:
        from engine.observe import core

        pool = core(self._llm).scheduler.kv_cache_manager.block_pool
        unused = [
            block.block_id
            for block in pool.blocks
            if block.block_id and block.ref_cnt == 0 and block.block_hash is None
        ]
        self.poisoned += len(unused)
        for cache in self._caches():
            cache[unused] = POISON

    def _overwrite_busiest(self) -> None:
        from engine.observe import core

        scheduler = core(self._llm).scheduler
        owners: dict[int, set[str]] = {}
        for request in scheduler.running:
            for group in scheduler.kv_cache_manager.get_block_ids(request.request_id):
                for block in group:
                    owners.setdefault(block, set()).add(request.request_id)
        owners.pop(0, None)
        block = max(owners, key=lambda b: len(owners[b]))
        self.owners = sorted(owners[block])
        for cache in self._caches():
            cache[block] = 3.0
