"""What elastic storage cannot serve yet, refused by the name of the option that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vllm import envs

from kvcached_core.engines.vllm.device import is_served

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Methods of speculative decoding whose drafts have no KV cache, or keep it in blocks of the
# scheduler's, those of the lookahead included.
_DRAFTS = ("ngram", "draft_model", "eagle", "eagle3")

# Steps and calls reach all ranks of these in one order.
_EXECUTORS = (None, "mp", "uni")

# Option, whether the configuration asks for it, why it is refused.
_Rule = tuple[str, Callable[[Any], bool], str]

_RULES: tuple[_Rule, ...] = (
    (
        "--device",
        lambda c: not is_served(c.device_config.device_type),
        "there are drivers for CPU and CUDA devices",
    ),
    (
        "--nnodes",
        lambda c: c.parallel_config.nnodes > 1,
        "ranks agree on each page over sockets of one machine, and none of vLLM's own ways between "
        "machines carries that beside a step; replicas on other machines are engines of their own",
    ),
    (
        "--decode-context-parallel-size, --prefill-context-parallel-size",
        lambda c: (
            c.parallel_config.decode_context_parallel_size > 1
            or c.parallel_config.prefill_context_parallel_size > 1
        ),
        "its warm-up touches blocks that were never handed out",
    ),
    (
        "--distributed-executor-backend",
        lambda c: c.parallel_config.distributed_executor_backend not in _EXECUTORS,
        "Ray's and other executors have not been shown to keep steps and calls in one order at all "
        "ranks; use 'mp' or 'uni'",
    ),
    (
        "--data-parallel-backend",
        lambda c: c.parallel_config.data_parallel_backend == "ray",
        "replicas that Ray starts have not been run; use 'mp'",
    ),
    (
        "--enable-elastic-ep",
        lambda c: c.parallel_config.enable_elastic_ep,
        "workers that come and go are not followed",
    ),
    (
        "--kv-offloading-size",
        lambda c: c.cache_config.kv_offloading_size is not None,
        "offloading reads blocks after they were freed",
    ),
    (
        "--kv-cache-dtype",
        lambda c: c.cache_config.cache_dtype.endswith("_per_token_head"),
        "it writes scales into all blocks when it starts, with memory or without; 'fp8' does not",
    ),
    (
        "--kv-transfer-config",
        lambda c: c.kv_transfer_config is not None,
        "connectors keep addresses of blocks that may have no memory by then",
    ),
    (
        "--speculative-config",
        lambda c: (c.speculative_config is not None and c.speculative_config.method not in _DRAFTS),
        f"methods that work are {', '.join(_DRAFTS)}",
    ),
    (
        "--scheduler-cls",
        lambda c: c.scheduler_config.scheduler_cls is not None,
        "a scheduler of your own does not attach the storage",
    ),
    (
        "--watermark",
        lambda c: c.scheduler_config.watermark > 0,
        "it keeps a share of all addresses free, which may be more than there is memory for",
    ),
    (
        "--sleep-mode-backend",
        lambda c: (
            c.model_config is not None
            and c.model_config.enable_sleep_mode
            and c.model_config.sleep_mode_backend != "cumem"
        ),
        "only 'cumem' leaves alone what is not its own",
    ),
    (
        "--enable-return-routed-experts",
        lambda c: c.model_config is not None and c.model_config.enable_return_routed_experts,
        "its buffers grow with the number of addresses, not with memory",
    ),
    (
        "VLLM_ENABLE_STARTUP_PLAN",
        lambda c: envs.VLLM_ENABLE_STARTUP_PLAN,
        "the size that it remembers was measured for a cache that takes all its memory at start, "
        "and would become a limit; set it to 0",
    ),
)

# Spec classes whose blocks are plain attention caches, each block read by its own sequence only.
_SPECS = frozenset({"FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"})


def check_supported(vllm_config: VllmConfig) -> None:
    """Raises ValueError for the first option that is refused. Touches no device."""
    for option, asked_for, reason in _RULES:
        if asked_for(vllm_config):
            raise ValueError(
                f"--kv-storage-backend=kvcached does not work with {option}: {reason}. "
                "Leave that option out, or use --kv-storage-backend=static."
            )


def check_settings(given: Mapping[str, Any]) -> None:
    """Raises ValueError for settings that are not served here, though they are elsewhere."""
    if "check_ranks" in given:
        raise ValueError("--kv-storage-config: check_ranks is only of SGLang; leave it out")


def check_groups(kv_cache_configs: list[KVCacheConfig]) -> None:
    """Raises ValueError for a model whose cache is more than attention blocks."""
    for config in kv_cache_configs:
        if not config.kv_cache_tensors:
            raise ValueError(
                "--kv-storage-backend=kvcached has nothing to store: this model has no KV cache. "
                "Use --kv-storage-backend=static."
            )
        for group in config.kv_cache_groups:
            for spec in _flat(group.kv_cache_spec):
                if type(spec).__name__ not in _SPECS:
                    raise ValueError(
                        f"--kv-storage-backend=kvcached does not serve models with a "
                        f"{type(spec).__name__} (layer {group.layer_names[0]}); served are "
                        f"{', '.join(sorted(_SPECS))}. Use --kv-storage-backend=static."
                    )


def _flat(spec: Any) -> Iterator[Any]:
    inner = getattr(spec, "kv_cache_specs", None)
    if inner is None:
        yield spec
    else:
        yield from inner.values()
