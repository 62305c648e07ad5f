"""Makes the plan of every worker, in the engine core, before anything is allocated."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

from kvcached_core.budget import create_segment, default_directory
from kvcached_core.config import Settings
from kvcached_core.engines.vllm.device import device_of
from kvcached_core.engines.vllm.geometry import Geometry
from kvcached_core.engines.vllm.room import Need, Room, check_room
from kvcached_core.engines.vllm.support import check_groups
from kvcached_core.instance.device import Device
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.room import floor_bytes

REPLICAS = "/dp"  # ends the name that replicas share, and is followed by the number of one

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


def make_plans(
    vllm_config: VllmConfig, settings: Settings, configs: list[KVCacheConfig]
) -> list[StoragePlan]:
    """One plan a worker; makes the instance's segment. Raises ValueError, BudgetError."""
    directory = directory_of(settings)
    devices = [device_of(vllm_config, settings, rank) for rank in range(len(configs))]
    rooms = [
        room_of(vllm_config, settings, device.open_budget(directory).capacity())
        for device in devices
    ]
    geometry = geometry_of(vllm_config, settings, configs)
    for rank, room in enumerate(rooms):
        check_room(geometry.need(rank), room, vllm_config.model_config.max_model_len)
    _check_together(vllm_config, geometry, devices, rooms)
    num_blocks = configs[0].num_blocks
    # Last, since a failure after it would leave the name taken for this process's life.
    name = instance_name(vllm_config, settings)
    segment = create_segment(
        directory, name, -(-num_blocks // geometry.blocks_per_page), len(configs)
    )
    start = uuid.uuid4().hex if len(configs) > 1 else ""
    plans = [
        StoragePlan(
            settings=settings,
            instance=name,
            rank=rank,
            num_ranks=len(configs),
            device=devices[rank].key,
            budget_dir=directory,
            capacity=rooms[rank].capacity,
            segment=segment,
            num_blocks=num_blocks,
            blocks_per_page=geometry.blocks_per_page,
            block_bytes=tensors,
            floor=floor_bytes(
                settings.floor,
                geometry.request_pages,
                geometry.page_bytes(rank),
                rooms[rank].limit_bytes,
            ),
            limit=rooms[rank].limit_bytes,
            granularity=geometry.granularity,
            start=start,
        )
        for rank, tensors in enumerate(geometry.block_bytes)
    ]
    shares = tuple(plan.share for plan in plans)
    return [replace(plan, shares=shares) for plan in plans]


def _check_together(
    vllm_config: VllmConfig, geometry: Geometry, devices: list[Device], rooms: list[Room]
) -> None:
    """What ranks of one device need for one request is there for all of them."""
    sharing: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        sharing.setdefault(device.key, []).append(rank)
    for ranks in (ranks for ranks in sharing.values() if len(ranks) > 1):
        needs = [geometry.need(rank) for rank in ranks]
        together = Need(
            size=sum(need.size for need in needs),
            page=sum(need.page for need in needs),
            least_size=sum(need.least_size for need in needs),
            least_page_size=min(need.least_page_size for need in needs),
        )
        room = replace(rooms[ranks[0]], limit=None, kv_cache_memory=None)  # these are a rank's
        check_room(together, room, vllm_config.model_config.max_model_len)


def geometry_of(
    vllm_config: VllmConfig, settings: Settings, configs: list[KVCacheConfig]
) -> Geometry:
    """The pages of an engine whose ranks have these configurations."""
    device = device_of(vllm_config, settings, 0)
    return Geometry(
        block_bytes=tuple(block_bytes(config) for config in configs),
        request_blocks=request_blocks(vllm_config, configs[0]),
        page_size=device.page_size if settings.page_size is None else settings.page_size,
        granularity=device.granularity,
    )


def geometry_of_layers(
    vllm_config: VllmConfig, settings: Settings, layers: dict[str, KVCacheSpec]
) -> Geometry:
    """The same for one rank before vLLM has planned, by the calls that it will plan with.

    Raises ValueError for layers that are not served.
    """
    groups = get_kv_cache_groups(vllm_config, dict(layers))
    # The number of blocks does not matter here: it must only not be zero.
    some_blocks = sum(spec.page_size_bytes for spec in layers.values())
    config = get_kv_cache_config_from_groups(vllm_config, groups, some_blocks)
    check_groups([config])
    return geometry_of(vllm_config, settings, [config])


def directory_of(settings: Settings) -> Path:
    """Where the records lie that this engine shares with others."""
    return default_directory() if settings.budget_dir is None else Path(settings.budget_dir)


def room_of(vllm_config: VllmConfig, settings: Settings, capacity: int) -> Room:
    """What bounds this engine in a budget of `capacity` bytes."""
    return Room(
        capacity=capacity,
        headroom=settings.headroom,
        limit=settings.limit,
        kv_cache_memory=vllm_config.cache_config.kv_cache_memory_bytes,
        given_capacity=settings.capacity,
    )


def instance_name(vllm_config: VllmConfig, settings: Settings) -> str:
    """The engine's identity; replicas of a data-parallel engine are ``name/dpN``."""
    assert settings.name is not None  # check_config has fixed it
    parallel = vllm_config.parallel_config
    replica = parallel.data_parallel_index
    # vLLM tells a dense model's replica that it is alone; the name tells otherwise.
    alone = parallel.data_parallel_size <= 1 and replica == 0
    if alone and not settings.name.endswith(REPLICAS):
        return settings.name
    return f"{settings.name.removesuffix(REPLICAS)}{REPLICAS}{replica}"


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
