"""The backend that vLLM finds under the name ``kvcached``."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.v1.kv_storage import KVBlockStorage, KVStorageBackend, KVWorkerStorage

from kvcached_core.config import Settings, parse_settings
from kvcached_core.engines.vllm import support
from kvcached_core.engines.vllm.block_storage import KvcachedBlockStorage
from kvcached_core.engines.vllm.planner import REPLICAS, make_plans
from kvcached_core.engines.vllm.worker_storage import KvcachedWorkerStorage
from kvcached_core.provenance import vllm as provenance

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

SOURCE = "--kv-storage-config"


def settings_of(vllm_config: VllmConfig) -> Settings:
    """The parsed settings; the name is also that of replicas. Raises SettingsError."""
    given = dict(vllm_config.cache_config.kv_storage_config)
    name = given.get("name")
    if not isinstance(name, str) or not name.endswith(REPLICAS):
        return parse_settings(given, SOURCE)
    given["name"] = name.removesuffix(REPLICAS)  # a name has no "/" of its own
    return replace(parse_settings(given, SOURCE), name=name)


class KvcachedBackend(KVStorageBackend):  # type: ignore[misc]
    """KV tensors with fixed addresses, whose memory comes with use and goes without."""

    name = "kvcached"
    preallocates = False

    @classmethod
    def check_config(cls, vllm_config: VllmConfig) -> None:
        provenance.check()
        support.check_supported(vllm_config)
        support.check_settings(vllm_config.cache_config.kv_storage_config or {})
        # One identity, fixed by the first process that sees the configuration and passed on.
        name = settings_of(vllm_config).name or f"vllm-{uuid.uuid4().hex[:12]}"
        if vllm_config.parallel_config.data_parallel_size > 1:
            name = name.removesuffix(REPLICAS) + REPLICAS
        given = vllm_config.cache_config.kv_storage_config
        if name != given.get("name"):
            vllm_config.cache_config.kv_storage_config = {**given, "name": name}

    @classmethod
    def use_packed_layout(
        cls, vllm_config: VllmConfig, kv_cache_groups: list[KVCacheGroupSpec]
    ) -> bool:
        return settings_of(vllm_config).layout == "block-major"

    @classmethod
    def plan(cls, vllm_config: VllmConfig, kv_cache_configs: list[KVCacheConfig]) -> None:
        support.check_groups(kv_cache_configs)
        plans = make_plans(vllm_config, settings_of(vllm_config), kv_cache_configs)
        for config, plan in zip(kv_cache_configs, plans, strict=True):
            config.storage_plan = plan

    @classmethod
    def create_block_storage(
        cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
    ) -> KVBlockStorage:
        return KvcachedBlockStorage(kv_cache_config.storage_plan)

    @classmethod
    def create_worker_storage(cls, vllm_config: VllmConfig, rank: int) -> KVWorkerStorage:
        return KvcachedWorkerStorage(vllm_config, settings_of(vllm_config), rank)
