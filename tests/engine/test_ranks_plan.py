"""The plan of an engine of several ranks: stages with bytes of their own, on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

from engine.worker_rig import BLOCK, SPEC, Worker
from kvcached_core.budget import Segment, remove_segment, sockets_folder
from kvcached_core.engines.vllm.backend import KvcachedBackend
from kvcached_core.instance.plan import StoragePlan

pytestmark = [pytest.mark.engine]

Plan = Callable[..., list[StoragePlan]]
BLOCKS = 40


def stage(layers: int) -> KVCacheConfig:
    names = [f"layer{n}" for n in range(layers)]
    tensors = [KVCacheTensor(BLOCKS * BLOCK, [name]) for name in names]
    return KVCacheConfig(BLOCKS, tensors, [KVCacheGroupSpec(names, SPEC)])


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    made: list[StoragePlan] = []

    def build(*layers: int, **given: Any) -> list[StoragePlan]:
        worker = Worker(tmp_path / "budget", **given)
        configs = [stage(count) for count in layers]
        KvcachedBackend.plan(worker.vllm_config, configs)
        made.extend(config.storage_plan for config in configs)
        return made

    yield build
    for each in made[:1]:
        remove_segment(each.segment)


def test_stages_have_pages_of_the_same_blocks_and_of_other_bytes(plan: Plan) -> None:
    first, second = plan(3, 1)
    assert first.blocks_per_page == second.blocks_per_page
    assert first.page_bytes == 3 * second.page_bytes
    assert (first.rank, second.rank, first.num_ranks) == (0, 1, 2)
    assert first.floor == 3 * second.floor
    assert first.shares == second.shares == (first.share, second.share)
    assert Segment.open(str(first.segment)).num_ranks == 2


def test_ranks_agree_by_transactions_of_one_start(plan: Plan) -> None:
    first, second = plan(2, 2)
    assert first.start == second.start
    assert len(first.start) == 32


def test_one_rank_answers_for_itself(plan: Plan) -> None:
    (only,) = plan(2)
    assert only.start == ""
    assert only.all_shares == (only.share,)


def test_ranks_of_a_machine_must_fit_together(plan: Plan) -> None:
    one_request = 3 * 4 * 3 * BLOCK  # pages, blocks, layers
    with pytest.raises(ValueError, match="one request of max_model_len 128 needs 288KiB"):
        plan(3, 3, capacity=one_request)
    assert len(plan(3, 3, capacity=2 * one_request)) == 2


def test_sockets_go_with_the_segment(plan: Plan) -> None:
    first, _ = plan(1, 1)
    folder = sockets_folder(first.segment)
    folder.mkdir()
    (folder / "0-start.socket").touch()
    remove_segment(first.segment)
    assert not folder.exists()
    assert not first.segment.exists()


def test_sockets_of_a_dead_namesake_are_removed(plan: Plan, tmp_path: Path) -> None:
    left = tmp_path / "budget" / "instances" / "one.sockets" / "0-old.socket"
    left.parent.mkdir(parents=True)
    left.touch()
    for folder in (tmp_path / "budget", left.parent.parent):
        folder.chmod(0o700)
    plan(1, 1)
    assert not left.parent.exists()
