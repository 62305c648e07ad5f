"""What elastic storage cannot serve yet, refused by the name of the option that asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvcached_core.engines.sglang.attention import (
    STRIDES,
    backends_of,
    check_whole_casts,
    check_windows,
    has_windows,
    takes_strides,
)
from kvcached_core.engines.sglang.demand import Limits
from kvcached_core.engines.sglang.device import is_served

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# Option, whether the arguments ask for it, why it is refused.
_Rule = tuple[str, Callable[[Any], bool], str]

_ON = frozenset({"1", "true", "yes", "y"})  # as SGLang reads its variables

_RULES: tuple[_Rule, ...] = (
    ("--device", lambda a: not is_served(a.device), "there are drivers for CPU and CUDA devices"),
    (
        "--dp-size, --enable-dp-attention",
        lambda a: a.dp_size > 1 or a.enable_dp_attention,
        "its ranks schedule requests of their own",
    ),
    (
        "--tp-size, --pp-size",
        lambda a: _has_ranks(a) and a.device != "cpu",
        "engines of several ranks are served on CPU only in this release",
    ),
    (
        "--nnodes",
        lambda a: a.nnodes > 1,
        "the ranks of an engine agree through memory and sockets of one machine",
    ),
    (
        "--scheduler-recv-interval",
        lambda a: _has_ranks(a) and a.scheduler_recv_interval > 1,
        "with several ranks, requests are passed on in every iteration or they fall out of step",
    ),
    (
        "--attn-cp-size, --dcp-size",
        lambda a: a.attn_cp_size > 1 or a.dcp_size > 1,
        "its allocators count more slots than its buffers have",
    ),
    (
        "--speculative-algorithm",
        lambda a: a.speculative_algorithm is not None,
        "pools of draft workers do not follow the target's slots yet",
    ),
    (
        "--enable-unified-memory",
        lambda a: a.enable_unified_memory,
        "it moves what its own buffer holds",
    ),
    (
        "--kv-cache-dtype",
        lambda a: "fp4" in str(a.kv_cache_dtype),
        "FP4 caches are read as a whole, with memory or without",
    ),
    ("--enable-hisparse", lambda a: a.enable_hisparse, "its pools are its own"),
    (
        "--disaggregation-mode",
        lambda a: a.disaggregation_mode != "null",
        "transfers may touch slots after they were freed",
    ),
    (
        "--enable-hierarchical-cache",
        lambda a: a.enable_hierarchical_cache,
        "copies into slots do not wait for passes that may still read them",
    ),
    (
        "--enable-lmcache",
        lambda a: a.enable_lmcache,
        "it keeps addresses of slots that may have no memory by then",
    ),
    (
        "--radix-cache-backend",
        lambda a: a.radix_cache_backend is not None,
        "other trees than SGLang's own are not tested",
    ),
    ("--kv-canary", lambda a: a.kv_canary != "none", "it reads slots that nobody holds"),
    (
        "--enable-memory-saver",
        lambda a: a.enable_memory_saver,
        "it is not tested together; without it, the KV cache's memory is released all the same",
    ),
    ("--enable-pdmux", lambda a: a.enable_pdmux, "its passes are on streams that are not fenced"),
    ("--dllm-algorithm", lambda a: a.dllm_algorithm is not None, "it is not tested"),
    (
        "--prefill-only-disable-kv-cache",
        lambda a: a.prefill_only_disable_kv_cache,
        "there is no KV cache then",
    ),
    (
        "SGLANG_MOONCAKE_CUSTOM_MEM_POOL",
        lambda a: "SGLANG_MOONCAKE_CUSTOM_MEM_POOL" in os.environ,
        "it takes the memory of KV tensors from elsewhere",
    ),
    (
        "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        lambda a: os.environ.get("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "").lower() in _ON,
        "KV tensors then lie in memory of its own, which only grows",
    ),
)


def _has_ranks(server_args: ServerArgs) -> bool:
    return bool(server_args.tp_size * server_args.pp_size > 1)


# Pools that take all their tensors from the storage, and read only slots that are in use.
_POOLS = ("MHATokenToKVPool", "MLATokenToKVPool", "DSATokenToKVPool", "PageMajorMHATokenToKVPool")


def check_supported(server_args: ServerArgs) -> None:
    """Raises ValueError for the first option that is refused. Touches no device."""
    for option, asked_for, reason in _RULES:
        if asked_for(server_args):
            raise ValueError(
                f"--kv-storage-backend=kvcached does not work with {option}: {reason}. "
                "Leave that option out, or use --kv-storage-backend=static."
            )
    if _has_ranks(server_args) and has_windows(server_args):
        raise ValueError(
            "--kv-storage-backend=kvcached does not work with --tp-size, --pp-size where sliding "
            "windows have a pool of their own, as for this model. Add --disable-hybrid-swa-memory, "
            "or use --kv-storage-backend=static."
        )
    check_whole_casts(server_args)
    check_windows(server_args)


def check_settings(server_args: ServerArgs, given: Mapping[str, Any]) -> None:
    """Raises ValueError for settings that are not served here, though they are elsewhere."""
    if "allocation_log" in given:
        raise ValueError("--kv-storage-config: allocation_log is only of vLLM; leave it out")
    if given.get("layout") == "block-major" and not takes_strides(server_args):
        raise ValueError(
            "--kv-storage-config: layout block-major does not work with --attention-backend="
            f"{', '.join(sorted(backends_of(server_args)))} here; leave layout out, or use "
            f"per-layer. It works with {', '.join(sorted(STRIDES))}."
        )
    if given.get("layout") == "per-layer" and has_windows(server_args):
        raise ValueError(
            "--kv-storage-config: layout per-layer does not work where sliding windows have a pool "
            "of their own, as for this model; leave layout out, or add --disable-hybrid-swa-memory"
        )


def check_pool(pool: Any) -> None:
    """Raises ValueError for a model whose cache is more than attention's."""
    name = type(pool).__name__
    if name not in _POOLS:
        raise ValueError(
            f"--kv-storage-backend=kvcached does not serve this model's cache, a {name}; served "
            f"are {', '.join(_POOLS)}. Use --kv-storage-backend=static."
        )


def limits_of(server_args: ServerArgs, params: Any) -> Limits:
    """What bounds a step, as the scheduler was configured. `params` is CacheInitParams."""
    from sglang.srt.environ import envs  # noqa: PLC0415
    from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS  # noqa: PLC0415

    chunk = server_args.chunked_prefill_size
    ratio = envs.SGLANG_INIT_NEW_TOKEN_RATIO.get() * server_args.schedule_conservativeness
    return Limits(
        block_tokens=params.page_size,
        chunk=chunk if chunk is not None and chunk > 0 else None,
        prefill=server_args.max_prefill_tokens,
        running=params.req_to_token_pool.size,
        answer=CLIP_MAX_NEW_TOKENS,
        # Without a tree it reckons with every token of requests that ignore the end of sequence.
        expected=1.0 if params.disable else min(ratio, 1.0),
        window=getattr(params, "sliding_window_size", None),
    )
