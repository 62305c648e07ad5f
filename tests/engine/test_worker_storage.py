"""The worker's half: tensors, memory step by step, the numbers that a start is refused with."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_storage import allocate_kv_tensor

from engine.storage_pair import until
from engine.worker_rig import BLOCK, CPU, LAYERS, MIB, SPEC, Make, Worker, make
from kvcached_core.budget import BudgetError, open_host_budget
from kvcached_core.engines.vllm.backend import KvcachedBackend, settings_of
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.planner import geometry_of, geometry_of_layers
from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage
from kvcached_core.provenance.vllm import provenance

pytestmark = [pytest.mark.engine]
__all__ = ["make"]  # a fixture

# --- tensors ---


@pytest.mark.parametrize(
    ("layout", "count", "size"),
    [("per-layer", LAYERS, 40 * BLOCK), ("block-major", 1, 40 * BLOCK * LAYERS)],
)
def test_tensors_are_exact_int8_and_zero_where_mapped(
    make: Make, layout: str, count: int, size: int
) -> None:
    worker = make(layout=layout).start()
    assert len(worker.tensors) == count
    extents = worker.plan.extent_bytes
    assert sum(extents) == worker.plan.page_bytes == 4 * LAYERS * BLOCK
    for tensor, extent in zip(worker.tensors, extents, strict=True):
        assert tensor.dtype == torch.int8 and tuple(tensor.shape) == (size,)
        assert tensor.untyped_storage().nbytes() == size and tensor.storage_offset() == 0
        assert int(torch.count_nonzero(tensor[:extent])) == 0
    assert len({t.untyped_storage().data_ptr() for t in worker.tensors}) == count
    assert worker.readable() == list(extents)  # the null page and nothing else


def test_a_page_reads_as_zero_when_it_comes_into_use_again(make: Make) -> None:
    worker = make().start()
    extent = worker.plan.extent_bytes[0]
    for epoch in (1, 3):
        worker.grow([1])
        worker.step(epoch, map=(1,))
        page = worker.tensors[0][extent : 2 * extent]
        assert int(torch.count_nonzero(page)) == 0
        page.fill_(7)
        worker.storage.end_step()
        worker.step(epoch + 1, tokens=0, retire=(1,))
        until(lambda: worker.readable() == list(worker.plan.extent_bytes), "release")


def test_memory_is_outside_of_the_scope_native(make: Make) -> None:
    worker = make().start()
    profiling = allocate_kv_tensor(KVCacheTensor(64, ["layer0"]), CPU)
    assert int(torch.count_nonzero(profiling)) == 0
    assert len(worker.storage._arenas) == LAYERS


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda t: t[:-1], "took 2 KV tensors from the storage, planned were 3"),
        # Of what the runner asks with, the size is all that every release tells.
        (
            lambda t: [*t, SimpleNamespace(size=t[0].size)],
            "asks for KV tensor 3 .*planned were 3 tensors",
        ),
        (
            lambda t: [KVCacheTensor(t[0].size - 1, ["layer0"]), *t[1:]],
            r"KV tensor 0 has \d+ bytes on cpu, planned were \d+",
        ),
    ],
)
def test_other_tensors_than_planned_stop_the_start(
    make: Make, harm: Callable[[Any], Any], text: str
) -> None:
    worker = make()
    worker.adjust()
    worker.make_plan()
    with pytest.raises(RuntimeError, match=text):
        worker.allocate(harm(worker.config.kv_cache_tensors))
    budget = open_host_budget(worker.plan.budget_dir, "default", MIB)
    assert budget.rows() == []


def test_a_plan_for_another_device_stops_the_start(make: Make) -> None:
    worker = make()
    worker.adjust()
    worker.config.storage_plan = replace(worker.make_plan(), device="host:other")
    with pytest.raises(RuntimeError, match=r"planned for budget host:other, rank 0 is on host:def"):
        worker.allocate()


def test_a_tensor_elsewhere_than_the_runner_stops_the_start(make: Make) -> None:
    worker = make()
    worker.adjust()
    worker.make_plan()
    with (
        pytest.raises(RuntimeError, match="KV tensor 0 lies on cpu, the model runner is on cpu:1"),
        worker.storage.allocation_scope(worker.config),
    ):
        worker.storage.allocate(worker.config.kv_cache_tensors[0], torch.device("cpu:1"))


# --- capacity ---


def test_capacity_is_what_blocks_are_planned_for(make: Make) -> None:
    assert make().adjust(found=5) == MIB


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ({"kv_cache_memory_bytes": 600_000}, 600_000),
        ({"kv_cache_memory_bytes": 600_000, "limit": "400KiB"}, 400 << 10),
        ({"kv_cache_memory_bytes": 300_000, "limit": "400KiB"}, 300_000),
        ({"limit": "400KiB"}, 400 << 10),
        ({}, MIB),
    ],
)
def test_the_limit_is_the_least_that_was_given(
    make: Make, given: dict[str, Any], least: int
) -> None:
    worker = make(**given).start()
    assert worker.plan.limit == least
    row = open_host_budget(worker.plan.budget_dir, "default", MIB).rows()[0]
    assert row.limit == least and row.floor == worker.plan.floor


@pytest.mark.parametrize("layout", ["per-layer", "block-major"])
@pytest.mark.parametrize("key", ["capacity", "limit", "kv_cache_memory_bytes"])
def test_a_length_fitted_to_the_answer_can_be_served(make: Make, layout: str, key: str) -> None:
    worker = make(layout=layout, **{key: 1_000_000})
    model = worker.vllm_config.model_config
    model.original_max_model_len = -1
    blocks = worker.adjust() // (LAYERS * BLOCK)
    assert blocks > 60
    model.max_model_len = blocks * 16
    assert worker.make_plan().floor <= 1_000_000


NAMED = {"kv_cache_memory_bytes": "--kv-cache-memory-bytes"}


@pytest.mark.parametrize("layout", ["per-layer", "block-major"])
@pytest.mark.parametrize(
    "given",
    [
        {"capacity": "100KiB"},
        {"limit": "100KiB"},
        {"kv_cache_memory_bytes": 100 << 10},
        {"capacity": "160KiB", "headroom": "60KiB"},
    ],
)
def test_both_calls_refuse_too_little_room_alike(
    make: Make, layout: str, given: dict[str, Any]
) -> None:
    # 8 blocks and the null block are 108 KiB; in pages of 4 blocks of 12 KiB, 144.
    worker = make(layout=layout, **given)
    said = []
    for call in (worker.adjust, worker.make_plan):
        with pytest.raises(ValueError) as refusal:
            call()
        said.append(str(refusal.value))
    assert said[0] == said[1]
    assert "max_model_len 128 needs 144KiB" in said[0] and "room for 100KiB" in said[0]
    key = list(given)[-1]
    assert f": {NAMED.get(key, key)}" in said[0]
    # The name is free still.
    again = make(layout=layout, capacity="144KiB", budget="other")
    again.adjust()
    assert again.make_plan().floor == 144 << 10


@pytest.mark.parametrize("layout", ["per-layer", "block-major"])
def test_both_calls_name_a_page_size_that_is_at_fault(make: Make, layout: str) -> None:
    worker = make(layout=layout, limit="143KiB")
    for call in (worker.adjust, worker.make_plan):
        with pytest.raises(ValueError, match=r"room for 143KiB: page_size.*to 12KiB") as refusal:
            call()
        assert "limit" not in str(refusal.value)
    fits = make(layout=layout, limit="143KiB", page_size="12KiB")
    fits.adjust()
    assert fits.make_plan().floor == 108 << 10


def test_layers_of_two_kinds_count_as_the_plan_counts_them(make: Make) -> None:
    worker = make(layout="per-layer")
    window = SlidingWindowSpec(
        block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32, sliding_window=32
    )
    layers = {"full0": SPEC, "full1": SPEC, "window0": window, "window1": window}
    worker.vllm_config.max_in_flight_tokens = 64
    settings = settings_of(worker.vllm_config)
    early = geometry_of_layers(worker.vllm_config, settings, layers)
    groups = [
        KVCacheGroupSpec(["full0", "full1"], SPEC),
        KVCacheGroupSpec(["window0", "window1"], window),
    ]
    tensors = [KVCacheTensor(40 * BLOCK, [f"full{i}", f"window{i}"]) for i in range(2)]
    late = geometry_of(worker.vllm_config, settings, [KVCacheConfig(40, tensors, groups)])
    assert early == late
    assert early.block_bytes == ((BLOCK, BLOCK),) and early.request_blocks > 128 // 16


def test_layers_that_are_not_served_are_refused_by_the_first_call(make: Make) -> None:
    worker = make()
    worker.specs = {
        "ssm": MambaSpec(block_size=16, shapes=((64,),), dtypes=(torch.float32,))  # type: ignore
    }
    with pytest.raises(ValueError, match="MambaSpec"):
        worker.adjust()


@pytest.mark.parametrize(
    ("given", "pages"), [({}, 3), ({"floor": "0B"}, 0), ({"floor": "1B"}, 1), ({"floor": 49153}, 2)]
)
def test_the_floor_is_whole_pages(make: Make, given: dict[str, Any], pages: int) -> None:
    worker = make(**given)
    worker.adjust()
    plan = worker.make_plan()
    assert plan.floor == pages * plan.page_bytes


def test_an_automatic_capacity_is_that_of_the_record(make: Make) -> None:
    first = make(capacity="512KiB").start()
    second = make(name="two")
    del second.vllm_config.cache_config.kv_storage_config["capacity"]
    second.storage = KvcachedWorkerStorage(second.vllm_config, settings_of(second.vllm_config), 0)
    assert second.adjust() == first.plan.capacity
    assert second.make_plan().capacity == first.plan.capacity
    with pytest.raises(BudgetError, match="capacity"):
        make(name="three", capacity="768KiB").adjust()


def test_a_name_in_use_is_refused_and_two_engines_share_a_process(make: Make) -> None:
    make().start()
    with pytest.raises(RuntimeError, match="'one' runs already"):
        make().start()
    two = make(name="two").start()
    assert len(open_host_budget(two.plan.budget_dir, "default", MIB).rows()) == 2


# --- the start line ---


def start_line(make: Make, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.INFO, logger=logger.name):
        make().start()
    (line,) = [r.getMessage() for r in caplog.records if "rank 0 of engine" in r.getMessage()]
    assert line.startswith("KV storage: kvcached, rank 0 of engine one: reserved ")
    return line


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    provenance.cache_clear()
    yield caplog
    provenance.cache_clear()


def test_the_start_line_names_upstream_fork_and_series(make: Make, heard: Any) -> None:
    stamp = importlib.import_module("vllm.v1.kv_storage._series")
    assert start_line(make, heard).endswith(
        f"; vllm {stamp.UPSTREAM}, kvcached-vllm-cpu {version('kvcached-vllm-cpu')}, "
        f"series {stamp.SERIES_HASH[:12]}"
    )


def test_the_start_line_says_when_there_is_no_wheel(
    make: Make, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcached_core.provenance.vllm._STAMP", "vllm.v1.kv_storage._absent")
    assert start_line(make, heard).endswith(
        "; series unknown (vllm runs from a tree, not from a wheel of ours)"
    )


# --- steps ---


class Recorder:
    """A rank that records what it is told, in order, and does it."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self.calls: list[tuple[Any, ...]] = []

    def make_ready(self, pages: Any) -> None:
        self.calls.append(("map", tuple(pages)))
        self._rank.make_ready(pages)

    def retire(self, pages: Any, epoch: int, fences: Any = ()) -> None:
        self.calls.append(("retire", tuple(pages), epoch))
        self._rank.retire(pages, epoch, fences)

    def close(self) -> None:
        self._rank.close()


@pytest.fixture
def worker(make: Make) -> Worker:
    worker = make().start()
    worker.grow([1, 2, 3])
    worker.storage._rank = Recorder(worker.storage._rank)
    return worker


def calls(worker: Worker) -> list[tuple[Any, ...]]:
    rank: Any = worker.storage._rank
    made = list(rank.calls)
    rank.calls.clear()
    return made


def test_map_comes_before_a_step_and_retire_behind_it(worker: Worker) -> None:
    worker.step(1, map=(0, 1, 2))
    worker.storage.end_step()
    assert calls(worker) == [("map", (0, 1, 2))]
    worker.step(2, map=(3,), retire=(1,))
    assert calls(worker) == [("map", (3,))]
    worker.storage.end_step()
    worker.storage.end_step()
    assert calls(worker) == [("retire", (1,), 2)]


def test_a_step_without_tokens_retires_at_once(worker: Worker) -> None:
    worker.step(1, map=(1,))
    worker.storage.end_step()
    worker.step(2, tokens=0, retire=(1, 2))
    assert calls(worker) == [("map", (1,)), ("retire", (1, 2), 2)]


def test_a_step_that_has_no_end_is_over_when_the_next_begins(worker: Worker) -> None:
    # Pooling models answer from execute_model: their worker never samples.
    worker.step(1, retire=(1,))
    worker.step(2, map=(2,), retire=(3,))
    assert calls(worker) == [("retire", (1,), 1), ("map", (2,))]
    worker.step(0)
    assert calls(worker) == [("retire", (3,), 2)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_update_out_of_order_is_an_error(worker: Worker, epoch: int) -> None:
    worker.step(2, map=(1,))
    with pytest.raises(RuntimeError, match=f"update {epoch} came after update 2"):
        worker.step(epoch, map=(2,))


def test_a_page_without_memory_cannot_be_used(worker: Worker) -> None:
    with pytest.raises((RuntimeError, ValueError), match="does not own page 5"):
        worker.step(1, map=(5,))


# --- sleep ---


def test_asleep_a_worker_holds_the_null_page_and_no_floor(make: Make) -> None:
    worker = make().start()
    worker.grow([1, 2, 3])
    worker.step(1, map=(1, 2, 3))
    worker.storage.end_step()
    worker.storage.suspend(1)
    worker.storage.suspend(1)
    assert worker.readable() == [worker.plan.extent_bytes[0]] * LAYERS
    (row,) = open_host_budget(worker.plan.budget_dir, "default", MIB).rows()
    assert (row.floor, row.lease, row.created) == (0, worker.plan.page_bytes, row.lease)
    worker.storage.resume(["weights"])
    worker.storage.resume(None)
    worker.storage.resume(None)
    (row,) = open_host_budget(worker.plan.budget_dir, "default", MIB).rows()
    assert row.floor == worker.plan.floor > 0


def test_waking_is_a_new_admission(make: Make) -> None:
    worker = make().start()
    worker.storage.suspend(1)
    budget = open_host_budget(worker.plan.budget_dir, "default", MIB)
    row = budget.join("greedy", 0, MIB, MIB - worker.plan.floor // 2)
    with pytest.raises(RuntimeError, match=r"engine one: its floor of .* cannot be had.*Stop one"):
        worker.storage.resume(None)
    budget.leave(row)
    worker.storage.resume(None)


def test_both_halves_count_sleep_alike(make: Make) -> None:
    worker = make().start()
    block = KvcachedBackend.create_block_storage(worker.vllm_config, worker.config)
    pool = BlockPool(worker.config.num_blocks, True, 16)
    pool.attach_storage(block)
    for epoch in range(1, 6, 2):  # an update and a sleep each
        assert pool.reserve_blocks(10)
        blocks = pool.get_new_blocks(10)
        update = block.take_update()
        assert update.epoch == epoch
        worker.step(epoch, map=update.map)
        pool.free_blocks(blocks)
        block.suspend()
        worker.storage.suspend(1)
        worker.storage.resume(None)
        block.resume()
        assert block.ledger.pages("retiring") == 0, "a page is still waited for"
    block.shutdown()


# --- the end ---


def test_shutdown_gives_everything_back_twice(make: Make) -> None:
    worker = make().start()
    worker.grow([1, 2])
    worker.step(1, map=(1, 2))
    driver = worker.storage._driver
    assert driver is not None and driver.held_bytes() >= 2 * worker.plan.page_bytes
    budget = open_host_budget(worker.plan.budget_dir, "default", MIB)
    assert budget.created() == 3 * worker.plan.page_bytes
    worker.tensors = []
    for _ in range(2):
        worker.storage.shutdown()
        assert driver.held_bytes() == 0
        assert budget.rows() == [] and budget.created() == 0
    worker.step(2, tokens=0, retire=(1,))  # a step of an engine that goes down


def test_shutdown_before_the_start_is_nothing(make: Make) -> None:
    make().storage.shutdown()
