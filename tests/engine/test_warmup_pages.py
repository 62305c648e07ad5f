"""Steps of vLLM's warm-up: they name blocks that nobody handed out, before there is a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from engine.worker_rig import LAYERS, MIB, Make, Worker, make
from kvcached_core.budget import open_host_budget
from kvcached_core.engines.vllm.backend import KvcachedBackend

pytestmark = [pytest.mark.engine]
__all__ = ["make"]  # a fixture


def prefill(requests: int, blocks: int, groups: int = 1) -> SchedulerOutput:
    """As warm-up makes it: each request with blocks of its own in each group, from 1 on."""
    ids = iter(range(1, 1 + requests * blocks * groups))
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [
        NewRequestData(
            req_id=f"r{i}",
            prompt_token_ids=[1],
            mm_features=[],
            sampling_params=None,
            pooling_params=None,
            block_ids=tuple([next(ids) for _ in range(blocks)] for _ in range(groups)),
            num_computed_tokens=0,
            lora_request=None,
        )
        for i in range(requests)
    ]
    output.total_num_scheduled_tokens = requests
    return output


def decode(*new_blocks: tuple[list[int], ...] | None) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    cached = CachedRequestData.make_empty()
    cached.req_ids = [f"r{i}" for i in range(len(new_blocks))]
    cached.new_block_ids = list(new_blocks)
    output.scheduled_cached_reqs = cached
    output.total_num_scheduled_tokens = len(new_blocks)
    return output


def ids_of(output: SchedulerOutput) -> list[int]:
    new = [ids for request in output.scheduled_new_reqs for ids in request.block_ids]
    cached = output.scheduled_cached_reqs.new_block_ids
    old = [ids for groups in cached for ids in groups or ()]
    return [block for ids in new + old for block in ids]


@pytest.fixture
def worker(make: Make) -> Iterator[Worker]:
    # Pages of 4 blocks; a request of the greatest length and the null block are 3 pages.
    yield make(num_blocks=400, capacity="8MiB").start(warm=False)


def touch(worker: Worker, output: SchedulerOutput) -> list[int]:
    """One step: writes to every block that it names, as the kernels do. Returns the names."""
    worker.storage.begin_step(output)
    named = ids_of(output)
    for tensor in worker.tensors:
        for block in named:
            tensor.view(worker.plan.num_blocks, -1)[block].fill_(7)
    worker.storage.end_step()
    return named


def test_few_blocks_keep_their_names(worker: Worker) -> None:
    assert touch(worker, prefill(requests=5, blocks=1)) == [1, 2, 3, 4, 5]
    assert touch(worker, decode(([6],), None, ([7],))) == [6, 7]
    assert worker.readable() == [2 * worker.plan.extent_bytes[0]] * LAYERS


def test_many_blocks_are_folded_into_the_floor(worker: Worker) -> None:
    named = touch(worker, prefill(requests=70, blocks=2, groups=2))
    assert len(named) == 280 and set(named) == set(range(1, 12))  # 3 pages less the null block
    assert touch(worker, decode(([281], [282]), None)) == [1 + 280 % 11, 1 + 281 % 11]
    assert worker.readable() == [3 * worker.plan.extent_bytes[0]] * LAYERS


def test_memory_beyond_the_floor_is_not_needed(make: Make) -> None:
    worker = make(num_blocks=400, capacity="8MiB").start(warm=False)
    budget = open_host_budget(worker.plan.budget_dir, "default", 8 * MIB)
    rest = 8 * MIB - worker.plan.floor
    row = budget.join("greedy", 0, rest, rest)
    assert len(touch(worker, prefill(requests=100, blocks=1))) == 100
    budget.leave(row)


def test_what_warm_up_took_is_given_back_clean(worker: Worker) -> None:
    touch(worker, prefill(requests=70, blocks=2))
    worker.storage.on_warmup_done()
    assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS
    block = KvcachedBackend.create_block_storage(worker.vllm_config, worker.config)
    pool = BlockPool(worker.config.num_blocks, True, 16)
    pool.attach_storage(block)
    assert block.ledger.pages("owned") == 1
    assert pool.reserve_blocks(11)
    given = pool.get_new_blocks(11)
    update = block.take_update()
    assert update is not None and update.epoch == 1
    worker.step(1, map=update.map)
    for tensor in worker.tensors:
        rows = tensor.view(worker.plan.num_blocks, -1)
        assert not any(rows[b.block_id].any() for b in given if b.block_id >= 4)
    block.shutdown()


def test_after_warm_up_names_are_left_alone(worker: Worker) -> None:
    worker.storage.on_warmup_done()
    output = prefill(requests=300, blocks=1)
    worker.storage.begin_step(output)
    assert ids_of(output) == list(range(1, 301))
    assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS


def test_a_step_without_blocks_takes_nothing(worker: Worker) -> None:
    touch(worker, SchedulerOutput.make_empty())
    touch(worker, decode(None))
    assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS


# --- several ranks ---


@pytest.fixture
def two(make: Make) -> Iterator[list[Worker]]:
    workers = [make(num_blocks=400, capacity="8MiB", rank=rank) for rank in range(2)]
    workers[0].start_with(workers[1])
    yield workers


def test_each_rank_warms_up_with_pages_of_its_own(two: list[Worker]) -> None:
    for worker in two:  # in turn: no rank waits for another's answer
        named = touch(worker, prefill(requests=70, blocks=2))
        assert set(named) == set(range(1, 12))
        assert worker.readable() == [3 * worker.plan.extent_bytes[0]] * LAYERS
    for worker in two:
        worker.storage.on_warmup_done()
        assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS
    first = two[0]
    block = KvcachedBackend.create_block_storage(first.vllm_config, first.config)
    pool = BlockPool(first.config.num_blocks, True, 16)
    pool.attach_storage(block)
    assert block.ledger.pages("owned") == 1
    assert pool.reserve_blocks(11)
    pool.get_new_blocks(11)
    update = block.take_update()
    assert update is not None and update.epoch == 1
    for worker in two:
        worker.step(1, map=update.map)
        assert min(worker.readable()) >= 3 * worker.plan.extent_bytes[0]  # and a reserve
    block.shutdown()


def test_a_rank_that_gets_less_warms_up_with_less(two: list[Worker]) -> None:
    storage, plan = two[1].storage, two[1].plan
    assert storage._budget is not None and storage._row is not None
    storage._budget.set_terms(storage._row, 2 * plan.page_bytes, 0, 0, 1000)
    assert set(touch(two[0], prefill(requests=70, blocks=2))) == set(range(1, 12))
    assert set(touch(two[1], prefill(requests=70, blocks=2))) == set(range(1, 8))


PAGE = LAYERS * 4096  # of one block


@pytest.mark.parametrize("floor", ["0B", "1B"])
def test_one_block_to_a_page_needs_a_second_page(make: Make, floor: str) -> None:
    worker = make(page_size=PAGE, capacity=f"{20 * PAGE}B", floor=floor).start(warm=False)
    assert worker.plan.blocks_per_page == 1
    assert set(touch(worker, prefill(requests=9, blocks=1))) == {1}


def test_no_memory_at_all_is_said_with_what_to_do(make: Make) -> None:
    worker = make(page_size=PAGE, capacity=f"{20 * PAGE}B", floor="0B").start(warm=False)
    budget = open_host_budget(worker.plan.budget_dir, "default", 20 * PAGE)
    row = budget.join("greedy", 0, 19 * PAGE, 19 * PAGE)
    with pytest.raises(RuntimeError, match=r"engine one: budget host:default .*raise floor"):
        touch(worker, prefill(requests=9, blocks=1))
    budget.leave(row)


# --- what the worker takes beside the cache ---


class Hungry:
    """A device whose worker yet takes `left` bytes."""

    def __init__(self, device: Any, left: int) -> None:
        self._device, self.left = device, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def workspace_bytes(self) -> int:
        return self.left

    def workspace_left(self) -> int:
        return self.left


def claim(worker: Worker) -> int:
    (row,) = open_host_budget(worker.plan.budget_dir, "default", 8 * MIB).rows()
    return row.claim


def test_the_workspace_is_claimed_until_it_is_taken(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcached_core.engines.vllm import worker_storage

    worker = make(num_blocks=400, capacity="8MiB")
    of, devices = worker_storage.device_of, []

    def hungry(*given: Any) -> Hungry:
        devices.append(Hungry(of(*given), 3 * MIB))
        return devices[-1]

    monkeypatch.setattr(worker_storage, "device_of", hungry)
    worker.start(warm=False)
    touch(worker, prefill(requests=9, blocks=1))
    (device,) = devices
    assert claim(worker) == 3 * MIB
    device.left = 2 * MIB
    worker.storage.on_warmup_done()
    assert claim(worker) == 2 * MIB
    device.left = MIB
    for _ in range(64):
        worker.storage.begin_step(SchedulerOutput.make_empty())
    assert claim(worker) == MIB
    worker.storage.suspend(1)
    assert claim(worker) == 0
    worker.storage.begin_step(SchedulerOutput.make_empty())
    assert claim(worker) == 0
    device.left = 2 * MIB
    worker.storage.resume(["kv_cache"])
    assert claim(worker) == 2 * MIB
