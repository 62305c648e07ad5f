"""What the storage hooks add to a scheduling pass and a step in which nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_storage.static import StaticWorkerStorage

from engine.storage_pair import BLOCK_TOKENS, Pair
from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage

STEP = SimpleNamespace(kv_storage_update=None, total_num_scheduled_tokens=256)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Pair]:
    """An engine with a request running and its reserve filled."""
    pair = Pair(tmp_path / "budget", pages=64, num_blocks=256, reserve_pages=2)
    assert pair.admit(list(range(20 * BLOCK_TOKENS))) is not None
    for _ in range(100):  # until the reserve has forgotten the first burst
        pair.step()
        pair.settle()
    assert pair.storage.take_update() is None
    yield pair
    pair.close()


def scheduler_hooks(storage: Any, pool: BlockPool, requests: int) -> None:
    """What a pass calls with so many running requests, as the patched scheduler guards it."""
    for _ in range(requests):
        pool.reserve_blocks(1)
        pool.get_num_free_blocks()
    if storage is not None:
        storage.take_update()


@pytest.mark.parametrize("requests", [1, 100])
def test_pass_static(benchmark: Any, requests: int) -> None:
    benchmark.group = f"hooks, scheduling pass, {requests} requests"
    pool = BlockPool(256, True, BLOCK_TOKENS)
    benchmark(scheduler_hooks, None, pool, requests)
    assert pool.storage is None


@pytest.mark.parametrize("requests", [1, 100])
def test_pass_kvcached(benchmark: Any, busy: Pair, requests: int) -> None:
    benchmark.group = f"hooks, scheduling pass, {requests} requests"
    benchmark(scheduler_hooks, busy.storage, busy.pool, requests)
    assert busy.storage.take_update() is None


@pytest.mark.parametrize("call", ["reserve", "take_update", "has_pending_update"])
def test_call_kvcached(benchmark: Any, busy: Pair, call: str) -> None:
    benchmark.group = f"hooks, {call}"
    arguments = [1] if call == "reserve" else []
    answer = benchmark(getattr(busy.storage, call), *arguments)
    assert answer is {"reserve": True, "take_update": None, "has_pending_update": False}[call]


@pytest.mark.parametrize("mode", ["static", "kvcached"])
def test_step(benchmark: Any, busy: Pair, mode: str) -> None:
    benchmark.group = "hooks, worker step"
    worker: Any = StaticWorkerStorage()
    if mode == "kvcached":
        worker = KvcachedWorkerStorage(None, busy.plan.settings, 0)  # type: ignore[arg-type]
        worker._rank = busy.rank

    def step() -> None:
        worker.begin_step(STEP)
        worker.end_step()

    benchmark(step)
