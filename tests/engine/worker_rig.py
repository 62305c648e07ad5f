"""A worker as an engine core starts it, by the same calls, without a model."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.kv_cache_utils import _get_kv_cache_config_packed
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_storage import KVStorageUpdate, allocate_kv_tensor, kv_allocation_scope

from engine.storage_pair import until
from kvcached_core.budget import Segment, remove_segment
from kvcached_core.engines.vllm.backend import KvcachedBackend, settings_of
from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.vmm import readable_bytes

LAYERS = 3
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32)
BLOCK = SPEC.page_size_bytes  # 4 KiB: of one layer
MIB = 1 << 20
CPU = torch.device("cpu")


class Layers(dict[str, Any]):
    """Every layer there may be, each with the attention backend of a CPU."""

    def __missing__(self, name: str) -> Any:
        return SimpleNamespace(get_attn_backend=lambda: CPUAttentionBackend)


class Worker:
    """What an engine core and its worker do at start, by the same calls, without a model."""

    def __init__(
        self, directory: Path, *, layout: str = "per-layer", num_blocks: int = 40, **given: Any
    ) -> None:
        cache = given.pop("kv_cache_memory_bytes", None)
        rank = given.pop("rank", 0)
        storage = {
            "budget_dir": str(directory),
            "name": "one",
            "capacity": "1MiB",
            "page_size": 4 * LAYERS * BLOCK,
            "layout": layout,
            **given,
        }
        self.vllm_config: Any = SimpleNamespace(
            cache_config=SimpleNamespace(
                kv_storage_backend="kvcached",
                kv_storage_config=storage,
                kv_cache_memory_bytes=cache,
                num_gpu_blocks_override=num_blocks,
            ),
            model_config=SimpleNamespace(max_model_len=128, original_max_model_len=128),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
            kv_transfer_config=None,
            device_config=SimpleNamespace(device_type="cpu"),
            compilation_config=SimpleNamespace(static_forward_context=Layers()),
            parallel_config=SimpleNamespace(
                world_size=1,
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                data_parallel_index=0,
                data_parallel_size=1,
            ),
        )
        names = [f"layer{i}" for i in range(LAYERS)]
        self.specs = dict.fromkeys(names, SPEC)
        groups = [KVCacheGroupSpec(names, SPEC)]
        if layout == "block-major":
            _, tensors = _get_kv_cache_config_packed(self.vllm_config, groups, MIB)
        else:
            tensors = [KVCacheTensor(num_blocks * BLOCK, [name]) for name in names]
        self.config = KVCacheConfig(num_blocks, tensors, groups)
        self.storage = KvcachedWorkerStorage(self.vllm_config, settings_of(self.vllm_config), rank)
        self.tensors: list[torch.Tensor] = []

    def adjust(self, found: int = 77) -> int:
        return self.storage.adjust_available_memory(found, self.specs)

    def make_plan(self) -> StoragePlan:
        KvcachedBackend.plan(self.vllm_config, [self.config])
        self.config = pickle.loads(pickle.dumps(self.config))  # as it travels to the worker
        assert isinstance(self.config.storage_plan, StoragePlan)
        return self.config.storage_plan

    def allocate(self, tensors: list[KVCacheTensor] | None = None) -> list[torch.Tensor]:
        with kv_allocation_scope(self.storage, self.config):
            given = self.config.kv_cache_tensors if tensors is None else tensors
            packed = given[:1] if given and given[0].block_stride else given
            self.tensors = [allocate_kv_tensor(tensor, CPU) for tensor in packed]
        return self.tensors

    def start(self, warm: bool = True) -> Worker:
        self.adjust()
        self.make_plan()
        self.allocate()
        if warm:
            self.storage.on_warmup_done()
        return self

    def start_with(self, *others: Worker) -> None:
        """Starts them as ranks of one engine, up to their warm-up."""
        workers = [self, *others]
        for worker in workers:
            worker.adjust()
        KvcachedBackend.plan(self.vllm_config, [worker.config for worker in workers])
        for worker in workers:
            worker.allocate()

    @property
    def plan(self) -> StoragePlan:
        plan = self.config.storage_plan
        assert isinstance(plan, StoragePlan)
        return plan

    def grow(self, pages: list[int]) -> None:
        segment = Segment.open(str(self.plan.segment))
        segment.request(pages)
        owned: list[int] = []

        def answered() -> bool:
            owned.extend(segment.poll()[0])
            return segment.outstanding() == 0

        until(answered, "growth")
        assert owned == pages

    def step(self, epoch: int, tokens: int = 1, **pages: tuple[int, ...]) -> None:
        update = KVStorageUpdate(epoch=epoch, **pages) if epoch else None
        output = SchedulerOutput.make_empty()
        output.kv_storage_update = update
        output.total_num_scheduled_tokens = tokens
        self.storage.begin_step(output)

    def readable(self) -> list[int]:
        return [readable_bytes(t.data_ptr(), t.numel()) for t in self.tensors]

    def close(self) -> None:
        self.tensors = []
        self.storage.shutdown()
        if self.config.storage_plan is not None:
            remove_segment(self.plan.segment)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def build(**given: Any) -> Worker:
        workers.append(Worker(tmp_path / "budget", **given))
        return workers[-1]

    yield build
    for worker in workers:
        worker.close()


Make = Callable[..., Worker]
