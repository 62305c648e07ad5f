"""Looks into a running scheduler: ids of slots handed out, pools, what a backend saw.

`run_scheduler_process` takes the place of SGLang's own in the scheduler's process, and starts it
once it can be looked into. What was seen comes with the scheduler's internal state.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

from engine_sglang import attention

# Requests that must have come before the first one is scheduled, so that batches do not depend on
# how fast they come.
GATE = "KVCACHED_TEST_GATE"
# The pass before which a page that requests read from is unmapped; 0: none.
MUTANT = "KVCACHED_TEST_MUTANT"
# What is added to attention, by its name in attention.py; empty: nothing.
ATTENTION = "KVCACHED_TEST_ATTENTION"

# Arguments of referee.py's Referee beside the backend, as JSON; empty: there is none.
REFEREE = "KVCACHED_TEST_REFEREE"
# 1: an idle scheduler that sleeps does not look once a second by itself.
DEEP_SLEEP = "KVCACHED_TEST_DEEP_SLEEP"


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers import scheduler

    inside = Inside()
    inside.watch_allocators()
    inside.watch_scheduler(scheduler.Scheduler)
    if name := os.environ.get(ATTENTION):
        attention.BY_NAME[name]()
    if step := int(os.environ[MUTANT]):
        unmap_before(step, scheduler.Scheduler)
    if os.environ.get(DEEP_SLEEP) == "1":
        sleep_deeply()
    if given := os.environ.get(REFEREE):
        inside.judge = judge(args, kwargs, json.loads(given), scheduler.Scheduler)
    scheduler.run_scheduler_process(*args, **kwargs)


class Inside:
    def __init__(self) -> None:
        self.slots: list[int] = []
        self._taken: list[Any] = []
        self.parked = 0
        self.looks = Looks()
        self.checks = Checks()
        self.judge: Any = None
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
                self._taken.append(taken)
            return taken

        return recording

    def watch_scheduler(self, cls: Any) -> None:
        if importlib.util.find_spec("sglang.srt.mem_cache.kv_storage") is not None:
            from kvcached_core.engines.sglang import KvcachedBackend

            self.looks.watch(KvcachedBackend)
        self.checks.watch(cls)
        prefill, state = cls.get_new_batch_prefill, cls.get_internal_state

        def gated(scheduler: Any, *running: Any) -> Any:
            if len(scheduler.waiting_queue) < self._gate:
                return _no_prefill(*running)
            self._gate = 0
            return prefill(scheduler, *running)

        def telling(scheduler: Any, request: Any) -> Any:
            output = state(scheduler, request)
            output.internal_state["observed"] = self._report(scheduler)
            return output

        cls.get_new_batch_prefill, cls.get_internal_state = gated, telling

    def _report(self, scheduler: Any) -> dict[str, Any]:
        allocator = scheduler.token_to_kv_pool_allocator
        pool = allocator.get_kvcache()
        backend = _backend_report()
        if backend is None:  # static: compared with upstream's
            self.slots += [slot for taken in self._taken for slot in taken.tolist()]
        self._taken.clear()
        buffers = _tensors(pool)
        return {
            "slots": self.slots,
            "parked": self.parked,
            "waiting": len(scheduler.waiting_queue),
            "allocator": _name_of(allocator),
            "pool": _name_of(pool),
            "tree": _name_of(scheduler.tree_cache),
            "tensors": [[list(t.shape), list(t.stride()), str(t.dtype)] for t in buffers],
            "offsets": [t.storage_offset() for t in buffers],
            "free": _free(allocator),
            "max_total_num_tokens": scheduler.max_total_num_tokens,
            "max_req_len": scheduler.max_req_len,
            "forward_ct": scheduler.forward_ct,
            "backend": backend,
            "checks": {"rests": self.checks.rests, "busy": self.checks.busy},
            "referee": self.judge.report() if self.judge else None,
            "looks": {"count": self.looks.looks, "wrong": self.looks.wrong},
        }


def judge(args: Any, kwargs: Any, given: dict[str, Any], scheduler: Any) -> Any:
    """A referee for the backend of the scheduler that starts with these arguments."""
    from sglang.srt.mem_cache.kv_storage import kv_storage_class

    from engine_sglang.referee import Referee

    server_args = kwargs["server_args"] if "server_args" in kwargs else args[0]
    found = Referee(kv_storage_class(server_args), **given)
    if given.get("harm"):
        found.harm_before(scheduler)
    return found


def sleep_deeply() -> None:
    from sglang.srt.managers.scheduler_components import idle_sleeper

    class Poller(idle_sleeper.zmq.Poller):  # type: ignore[misc]
        def poll(self, timeout: Any = None) -> Any:
            return super().poll()

    idle_sleeper.zmq = SimpleNamespace(Poller=Poller, POLLIN=idle_sleeper.zmq.POLLIN)


def unmap_before(step: int, cls: Any) -> None:
    """Unmaps, before pass `step`, the page that most of its requests read from, in one tensor."""
    run_batch, passes = cls.run_batch, itertools.count(1)

    def harming(scheduler: Any, batch: Any, *more: Any) -> Any:
        if next(passes) == step:
            _unmap_busiest(scheduler, batch)
        return run_batch(scheduler, batch, *more)

    cls.run_batch = harming


def committed_slots(scheduler: Any, request: Any) -> Any:
    """What the request has written; releases differ in where it says so."""
    holder = getattr(request, "kv", None) or request
    tokens = scheduler.req_to_token_pool.req_to_token
    return tokens[holder.req_pool_idx, : holder.kv_committed_len]


def _unmap_busiest(scheduler: Any, batch: Any) -> None:
    from sglang.srt.mem_cache.kv_storage import get_kv_storage

    geometry = get_kv_storage()._opening.pages
    pages: Counter[int] = Counter()
    for request in batch.reqs:
        slots = committed_slots(scheduler, request)
        pages.update(set((slots // geometry.page_tokens).tolist()))
    page = next(page for page, _ in pages.most_common() if page)
    arena = get_kv_storage()._memory.tensors.arenas[0]
    arena.unmap(page * geometry.extent_bytes[0])


class Looks:
    """Every so many steps of an elastic backend: whether what can be taken has memory."""

    EVERY = 7

    def __init__(self) -> None:
        self.looks = 0
        self.wrong: list[str] = []
        self._steps = itertools.count(1)

    def watch(self, cls: Any) -> None:
        begin_step = cls.begin_step

        def looking(backend: Any, *arguments: Any) -> None:
            begin_step(backend, *arguments)
            if next(self._steps) % self.EVERY == 0:
                self._look(backend)

        cls.begin_step = looking

    def _look(self, backend: Any) -> None:
        self.looks += 1
        for pool in backend._stepper._pools.members:
            self._look_at(pool)

    def _look_at(self, pool: Any) -> None:
        allocator, ledger, stock = pool.allocator, pool.ledger, pool.stock
        ledger.check_integrity()
        listed = allocator.free_pages.tolist()
        if stock._withheld is not None:
            listed += stock._withheld.blocks.tolist()
        if len(set(listed)) != len(listed) or 0 in listed:
            self.wrong.append("a slot is listed twice, or padding's")
        for page in {block // pool.geometry.blocks_per_page for block in listed}:
            if page and ledger.state_of(page) != "used":
                self.wrong.append(f"page {page} is listed and {ledger.page_state(page)}")
        if allocator.available_size() > 0 and allocator.unbacked_size() < 0:
            self.wrong.append(f"{allocator.unbacked_size()} tokens are without memory")


class Checks:
    """SGLang's own checks that no slot is lost, which end it if one is."""

    def __init__(self) -> None:
        self.rests = 0
        """How often an idle scheduler was checked that had worked since the last time."""
        self.busy = 0
        """How often it was checked between passes."""
        self._has_worked = True

    def watch(self, scheduler: Any) -> None:
        from sglang.srt.managers.scheduler_components.invariant_checker import (
            SchedulerInvariantChecker as Checker,
        )

        run_batch = scheduler.run_batch
        check_all_pools, check_busy = Checker._check_all_pools, Checker.self_check_during_busy

        def working(scheduler: Any, *given: Any) -> Any:
            self._has_worked = True
            return run_batch(scheduler, *given)

        def checking(checker: Any, *given: Any) -> Any:
            found = check_all_pools(checker, *given)
            self.rests += self._has_worked
            self._has_worked = False
            return found

        def checking_busy(checker: Any) -> None:
            check_busy(checker)
            batch = checker.get_last_batch()
            self.busy += batch is not None and bool(batch.reqs)

        scheduler.run_batch = working
        Checker._check_all_pools, Checker.self_check_during_busy = checking, checking_busy


def _no_prefill(*running: Any) -> Any:
    """None, or of releases that pass the running batch on, a plan that leaves it as it is."""
    if not running:
        return None
    from sglang.srt.managers.scheduler import NextBatchPlan

    return NextBatchPlan(batch_to_run=None, running_batch=running[0])


def _tensors(pool: Any) -> list[Any]:
    if hasattr(pool, "swa_kv_pool"):
        return _tensors(pool.swa_kv_pool) + _tensors(pool.full_kv_pool)
    names = ("k_buffer", "v_buffer", "kv_buffer")
    return [tensor for name in names for tensor in getattr(pool, name, [])]


def _free(allocator: Any) -> list[int]:
    if hasattr(allocator, "swa_attn_allocator"):
        parts = (allocator.swa_attn_allocator, allocator.full_attn_allocator)
        return [slot for part in parts for slot in part.free_pages.tolist()]
    return list(allocator.free_pages.tolist())


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
