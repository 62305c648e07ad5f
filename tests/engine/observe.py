"""Looks into a running engine: memory as the operating system counts it, block ids, tensors."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def memfd_bytes(pid: int) -> int:
    """Bytes that the driver's memfd holds in `pid` and all its descendants, by its blocks."""
    return sum(_held(child) for child in _family(pid))


def _held(pid: int) -> int:
    total = 0
    try:
        for fd in (PROC / str(pid) / "fd").iterdir():
            try:
                if "memfd:kvcached" in str(fd.readlink()):
                    total += fd.stat().st_blocks * 512
            except OSError:
                continue
    except OSError:
        return 0
    return total


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
        children = [c for t in tasks for c in (t / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


class Memory:
    """Samples memfd_bytes of this process's family in the background. Bytes."""

    def __init__(self, period: float = 0.05) -> None:
        self.peak = 0
        self._period = period
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(self._period):
            self.peak = max(self.peak, memfd_bytes(os.getpid()))

    def now(self) -> int:
        return memfd_bytes(os.getpid())

    def settle(self, quiet: float = 1.0, deadline: float = 15.0) -> int:
        """The value once it has not changed for `quiet` seconds."""
        end = time.monotonic() + deadline
        value, since = memfd_bytes(os.getpid()), time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < quiet:
            time.sleep(0.05)
            now = memfd_bytes(os.getpid())
            if now != value:
                value, since = now, time.monotonic()
        return value

    def fall(self, mark: int, deadline: float = 15.0) -> int:
        """The value once it is no more than `mark`, or when the time is over."""
        end = time.monotonic() + deadline
        while (value := self.now()) > mark and time.monotonic() < end:
            time.sleep(0.005)
        return value

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self.peak


def metrics(llm: Any) -> dict[str, float]:
    """Counters and gauges of the engine by name, without labels."""
    return {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}


def core(llm: Any) -> Any:
    """The engine core of an LLM in the in-process shape."""
    return llm.llm_engine.engine_core.engine_core


def rest(llm: Any) -> None:
    """In the in-process shape, steps as an idle engine core does until nothing is pending."""
    for _ in range(100):
        if not core(llm).scheduler.kv_storage.has_pending_update():
            return
        core(llm).step_fn()
    raise AssertionError("the engine spins")


class Inside:
    """Records, in the in-process shape, the ids of all blocks handed out, in order."""

    def __init__(self) -> None:
        from vllm.v1.core.block_pool import BlockPool

        self.block_ids: list[int] = []
        original = BlockPool.get_new_blocks

        def recording(pool: Any, count: int) -> Any:
            blocks = original(pool, count)
            self.block_ids += [block.block_id for block in blocks]
            return blocks

        BlockPool.get_new_blocks = recording
        self.cached: set[str] = set()
        self.removed = 0
        take_events = BlockPool.take_events

        def replaying(pool: Any) -> Any:
            events = take_events(pool)
            for event in events:
                self._replay(event)
            return events

        BlockPool.take_events = replaying

    def _replay(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "BlockStored":
            self.cached |= {repr(h) for h in event.block_hashes}
        elif kind == "BlockRemoved":
            self.removed += 1
            self.cached -= {repr(h) for h in event.block_hashes}
        elif kind == "AllBlocksCleared":
            self.cached.clear()

    def report(self, llm: Any) -> dict[str, Any]:
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        runner = core(llm).model_executor.driver_worker.worker.model_runner
        tensors = [[list(t.shape), list(t.stride()), str(t.dtype)] for t in runner.kv_caches]
        offsets = [t.storage_offset() for t in runner.kv_caches]
        pool = core(llm).scheduler.kv_cache_manager.block_pool
        for event in pool.kv_event_queue:
            self._replay(event)
        hashes = {repr(maybe_convert_block_hash(get_block_hash(h))) for h in _keys(pool)}
        report = {"block_ids": self.block_ids, "tensors": tensors, "offsets": offsets}
        report["events_hold"] = self.cached == hashes
        report["events_cached"], report["events_removed"] = len(self.cached), self.removed
        storage = getattr(core(llm).scheduler, "kv_storage", None)
        if storage is not None:
            storage.ledger.check_integrity()
            worker = core(llm).model_executor.driver_worker.worker.kv_storage
            report["rank"] = worker._rank.counters()
            report["pages"] = worker._plan.num_pages
            report["readable"] = readable_pages(worker)
            report["mapped"] = worker._rank.mapped_bytes // worker._rank.page_bytes
        return report


def _keys(pool: Any) -> list[Any]:
    return list(pool.cached_block_hash_to_block._cache)


def readable_pages(worker_storage: Any) -> int:
    """Pages of the first tensor of which any byte can be read without a fault."""
    from kvcached_core.vmm import readable_bytes

    arena, extent = worker_storage._arenas[0], worker_storage._plan.extent_bytes[0]
    starts = range(arena.base, arena.base + arena.size, extent)
    return sum(readable_bytes(start, extent) > 0 for start in starts)


class Readable:
    """Every `every` steps, in the in-process shape, what can be read against what is mapped.

    The background thread may map or unmap during a look, so a look is right if what was read lies
    between what was mapped before it and after it.
    """

    def __init__(self, every: int = 40) -> None:
        from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage

        self.looks = 0
        self.wrong: list[tuple[int, int, int]] = []
        self.most_unmapped = 0
        steps = itertools.count(1)
        original = KvcachedWorkerStorage.begin_step

        def looking(storage: Any, scheduler_output: Any) -> None:
            original(storage, scheduler_output)
            if next(steps) % every == 0:
                self._look(storage)

        KvcachedWorkerStorage.begin_step = looking

    def _look(self, storage: Any) -> None:
        mapped = [storage._rank.mapped_bytes // storage._rank.page_bytes]
        readable = readable_pages(storage)
        mapped.append(storage._rank.mapped_bytes // storage._rank.page_bytes)
        self.looks += 1
        self.most_unmapped = max(self.most_unmapped, storage._plan.num_pages - readable)
        if not min(mapped) <= readable <= max(mapped):
            self.wrong.append((mapped[0], readable, mapped[1]))


def delay_device(cycles: int) -> None:
    """Lets a CUDA device begin the model of every step of this process so many cycles late."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage

    begin_step, model_forward = KvcachedWorkerStorage.begin_step, GPUModelRunner._model_forward

    def begin_late(storage: Any, scheduler_output: Any) -> None:
        begin_step(storage, scheduler_output)
        second = storage._vllm_config.use_v2_model_runner
        if second and scheduler_output.total_num_scheduled_tokens:
            torch.cuda._sleep(cycles)

    def forward_late(runner: Any, *arguments: Any, **more: Any) -> Any:
        # The first runner waits, before it prepares inputs, until the last step's were copied.
        torch.cuda._sleep(cycles)
        return model_forward(runner, *arguments, **more)

    KvcachedWorkerStorage.begin_step = begin_late
    GPUModelRunner._model_forward = forward_late


def skip_fences() -> None:
    """Lets every rank of this process give pages back without waiting for queued work."""
    from kvcached_core.engines.vllm.device import CudaDevice

    CudaDevice.streams = lambda device: []


class Mutant:
    """Harms, before step `step`, the page that most running requests read from."""

    def __init__(self, harm: str, step: int) -> None:
        from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage

        self.owners: list[str] = []
        self._harm: Callable[[Any, int], None] = {"unmap": _unmap, "poison": _poison}[harm]
        self._left = step
        self._llm: Any = None
        original = KvcachedWorkerStorage.begin_step

        def harming(storage: Any, scheduler_output: Any) -> None:
            original(storage, scheduler_output)
            if self._llm is not None and scheduler_output.total_num_scheduled_tokens:
                self._left -= 1
                if self._left == 0:
                    self._strike(storage)

        KvcachedWorkerStorage.begin_step = harming

    def arm(self, llm: Any) -> None:
        self._llm = llm

    def _strike(self, storage: Any) -> None:
        scheduler = core(self._llm).scheduler
        owners: dict[int, set[str]] = {}
        for request in scheduler.running:
            for group in scheduler.kv_cache_manager.get_block_ids(request.request_id):
                for block in group:
                    page = block // storage._plan.blocks_per_page
                    owners.setdefault(page, set()).add(request.request_id)
        page = max(owners, key=lambda p: len(owners[p]))
        self.owners = sorted(owners[page])
        self._harm(storage, page)


def _unmap(storage: Any, page: int) -> None:
    storage._arenas[0].unmap(page * storage._plan.extent_bytes[0])


def _poison(storage: Any, page: int) -> None:
    import torch

    extent = storage._plan.extent_bytes[0]
    view = torch.from_dlpack(storage._arenas[0].tensor(page * extent, extent))
    view.view(torch.float32).fill_(3.0)
