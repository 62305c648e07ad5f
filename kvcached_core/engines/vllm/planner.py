"""Makes the plan of every worker, in the engine core, before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcached_core.budget import create_segment, default_directory, open_host_budget
from kvcached_core.config import Settings
from kvcached_core.engines.vllm.plan import (
    StoragePlan,
    check_room,
    choose_blocks_per_page,
    page_memory,
    pages_for_blocks,
)
from kvcached_core.vmm import HOST_GRANULARITY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def make_plans(
    vllm_config: VllmConfig, settings: Settings, configs: list[KVCacheConfig]
) -> list[StoragePlan]:
    """One plan a worker; makes the instance's segment. Raises ValueError, BudgetError."""
    directory = directory_of(settings)
    capacity = open_host_budget(
        directory, settings.budget, settings.capacity, settings.headroom
    ).capacity()
    limit = effective_limit(vllm_config, settings, capacity)
    sizes = [block_bytes(config) for config in configs]
    per_page = choose_blocks_per_page(sizes, settings.page_size, HOST_GRANULARITY)
    need = pages_for_blocks(request_blocks(vllm_config, configs[0]), per_page)
    num_blocks = configs[0].num_blocks
    pages = [
        page_memory([per_page * size for size in tensors], HOST_GRANULARITY) for tensors in sizes
    ]
    for page in pages:
        check_room(
            need * page,
            capacity,
            limit,
            settings.headroom,
            vllm_config.model_config.max_model_len,
        )
    # Last, since a failure after it would leave the name taken for this process's life.
    name = instance_name(vllm_config, settings)
    segment = create_segment(directory, name, -(-num_blocks // per_page), len(configs))
    return [
        StoragePlan(
            settings=settings,
            instance=name,
            rank=rank,
            num_ranks=len(configs),
            device=f"host:{settings.budget}",
            budget_dir=directory,
            capacity=capacity,
            segment=segment,
            num_blocks=num_blocks,
            blocks_per_page=per_page,
            block_bytes=tensors,
            floor=floor_bytes(settings.floor, need, pages[rank], limit),
            limit=limit,
        )
        for rank, tensors in enumerate(sizes)
    ]


def floor_bytes(given: int | None, need: int, page_bytes: int, limit: int) -> int:
    """The floor in whole pages, so that what lies above it can be given back to the last byte."""
    pages = need if given is None else -(-given // page_bytes)
    return min(pages * page_bytes, limit)


def spec_page_bytes(settings: Settings, layer_bytes: list[int]) -> int:
    """Bytes of a page before layers are grouped: never less than the planned one."""
    tensors = [sum(layer_bytes)] if settings.layout == "block-major" else layer_bytes
    per_page = choose_blocks_per_page([tensors], settings.page_size, HOST_GRANULARITY)
    return page_memory([per_page * size for size in tensors], HOST_GRANULARITY)


def directory_of(settings: Settings) -> Path:
    """Where the records lie that this engine shares with others."""
    return default_directory() if settings.budget_dir is None else Path(settings.budget_dir)


def effective_limit(vllm_config: VllmConfig, settings: Settings, capacity: int) -> int:
    """Bytes that this engine may map: the least of `limit`, --kv-cache-memory-bytes, capacity."""
    given: list[int | None] = [settings.limit, vllm_config.cache_config.kv_cache_memory_bytes]
    return min([capacity, *(size for size in given if size is not None)])


def instance_name(vllm_config: VllmConfig, settings: Settings) -> str:
    """The engine's identity; replicas of a data-parallel engine are ``name/dpN``."""
    assert settings.name is not None  # check_config has fixed it
    parallel = vllm_config.parallel_config
    replica = parallel.data_parallel_index
    alone = parallel.data_parallel_size <= 1 and replica == 0
    return settings.name if alone else f"{settings.name}/dp{replica}"


def block_bytes(config: KVCacheConfig) -> tuple[int, ...]:
    """Bytes of one block in each tensor that the worker will allocate, in that order."""
    packed = {t.block_stride for t in config.kv_cache_tensors if t.block_stride > 0}
    if packed:
        if len(packed) != 1 or any(t.block_stride == 0 for t in config.kv_cache_tensors):
            raise ValueError(
                "KV tensors of packed and of separate layout in one model are not supported; "
                '--kv-storage-config \'{"layout": "per-layer"}\' may serve it'
            )
        return (packed.pop(),)
    return tuple(t.size // config.num_blocks for t in config.kv_cache_tensors)


def request_blocks(vllm_config: VllmConfig, config: KVCacheConfig) -> int:
    """Blocks that one request of max_model_len holds at most, over all groups."""
    total = 0
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        total += -(-spec.max_memory_usage_bytes(vllm_config) // spec.page_size_bytes)
    return total
