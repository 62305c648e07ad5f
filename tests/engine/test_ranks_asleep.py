"""Two workers of one engine fall asleep and wake, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool

from engine.worker_rig import LAYERS, MIB, Make, Worker, make
from kvcached_core.budget import RowInfo, open_host_budget
from kvcached_core.engines.vllm import worker_storage
from kvcached_core.engines.vllm.backend import KvcachedBackend
from kvcached_core.engines.vllm.block_storage import KvcachedBlockStorage

pytestmark = [pytest.mark.engine]
__all__ = ["make"]  # a fixture

CAPACITY = 8 * MIB


class Engine:
    def __init__(self, make: Make) -> None:
        self.workers: list[Worker] = [
            make(num_blocks=400, capacity=f"{CAPACITY}B", rank=rank) for rank in range(2)
        ]
        first = self.workers[0]
        first.start_with(*self.workers[1:])
        for worker in self.workers:
            worker.storage.on_warmup_done()
        self.plan = first.plan
        self.block: KvcachedBlockStorage = KvcachedBackend.create_block_storage(
            first.vllm_config, first.config
        )
        self.pool = BlockPool(first.config.num_blocks, True, 16)
        self.pool.attach_storage(self.block)
        self.budget = open_host_budget(first.plan.budget_dir, "default", CAPACITY)

    def work(self) -> None:
        """A step that uses memory, and the end of its request."""
        assert self.pool.reserve_blocks(20)
        blocks = self.pool.get_new_blocks(20)
        update = self.block.take_update()
        assert update is not None
        for worker in self.workers:
            worker.step(update.epoch, map=update.map)
            worker.storage.end_step()
        self.pool.free_blocks(blocks)

    def together(self, name: str, *given: Any) -> None:
        """A call of every worker, each in a thread of its own as executors do it in processes."""
        with ThreadPoolExecutor() as pool:
            calls = [pool.submit(getattr(w.storage, name), *given) for w in self.workers]
            for call in calls:
                call.result()

    def sleep(self) -> None:
        self.block.suspend()
        self.together("suspend", 1)

    def wake(self) -> None:
        self.together("resume", None)
        self.block.resume()

    def rows(self) -> list[RowInfo]:
        return [row for row in self.budget.rows() if row.instance == self.plan.instance]


@pytest.fixture
def engine(make: Make) -> Iterator[Engine]:
    made = Engine(make)
    yield made
    made.block.shutdown()


def test_asleep_every_rank_has_its_null_page_and_its_floor(engine: Engine) -> None:
    for _ in range(3):
        engine.work()
        assert all(row.created > engine.plan.page_bytes for row in engine.rows())
        engine.sleep()
        for worker in engine.workers:
            assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS
        for row in engine.rows():
            assert row.created == row.lease == engine.plan.page_bytes
            assert row.floor == engine.plan.floor and row.claim == 0
        engine.wake()
        assert engine.block.ledger.pages("owned") == 1
        assert engine.block.ledger.pages("retiring") == 0


def test_a_neighbour_has_the_rest_meanwhile_and_none_is_refused_when_they_wake(
    engine: Engine,
) -> None:
    engine.work()
    engine.sleep()
    rest = CAPACITY - sum(row.floor for row in engine.rows())
    row = engine.budget.join("greedy", 0, rest, rest)
    assert engine.budget.lease(row, rest, 1 << 60, 1000).name == "GRANTED"
    engine.wake()
    assert engine.pool.reserve_blocks(8)  # within the floor
    engine.budget.unlease(row, rest)
    engine.budget.leave(row)


def test_a_rank_whose_pages_do_not_go_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.work()
    engine.block.suspend()
    monkeypatch.setattr(worker_storage, "_DRAIN_MS", 100)
    # The other one's fence does not come, so nothing is decided.
    with pytest.raises(RuntimeError, match="engine one, rank 1: pages were not released"):
        engine.workers[1].storage.suspend(1)
