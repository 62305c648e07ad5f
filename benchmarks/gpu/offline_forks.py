"""What differs between the engines that offline.py runs: arguments, environment, child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUNNERS = {"first": "0", "second": "1"}  # of VLLM_USE_V2_MODEL_RUNNER
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # keys and values of Llama-3.1-8B's shape, bfloat16


@dataclass(frozen=True)
class Fork:
    child: Path
    """What obeys as offline_child.py does."""
    engine: Callable[[int, float], dict[str, Any]]
    """Arguments for a cache of so many bytes, and for the share of the device that its guard at
    start, or its sizing, goes by."""
    environment: Callable[[str], dict[str, str]]
    """For one of RUNNERS."""
    counted: tuple[str, ...]
    """Modes whose engines tell counters."""
    ranks: Callable[[int, int], dict[str, Any]]
    """Arguments for so many GPUs, each with a cache of so many bytes."""

    def tensor_parallel(self, ranks: int, cache: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Arguments and environment for GPUs that share each layer. They add up by NCCL alone, and
        without multicast, which not every machine has."""
        engine = {**self.ranks(ranks, cache), "disable_custom_all_reduce": True}
        return engine, {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def _vllm_engine(cache: int, utilization: float) -> dict[str, Any]:
    # With a cache of a given size vLLM only asks at start whether that share of the device is
    # free; an elastic engine is not even asked.
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 8192,
        "enable_prefix_caching": False,
        "seed": 0,
        "gpu_memory_utilization": utilization,
        "kv_cache_memory_bytes": cache,
    }


def _vllm_environment(runner: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # A function is sent to the worker for its counters.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner],
    }


def _vllm_ranks(ranks: int, cache: int) -> dict[str, Any]:
    # Fused with what follows, sums go through FlashInfer, and there by multicast.
    alone = {"pass_config": {"fuse_allreduce_rms": False}}
    return {"tensor_parallel_size": ranks, "compilation_config": alone}


def _sglang_engine(cache: int, utilization: float) -> dict[str, Any]:
    # SGLang takes what the device has, but for a share of what was free; this cuts it.
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "context_length": 8192,
        "disable_radix_cache": True,
        "random_seed": 0,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 1 - utilization / 3,
        "max_total_tokens": cache // TOKEN_BYTES,
        # As many as a short start allows.
        "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512],
        "cuda_graph_bs_prefill": [64, 256, 1024, 4096, 8192],
    }


def _sglang_ranks(ranks: int, cache: int) -> dict[str, Any]:
    return {"tp_size": ranks, "max_total_tokens": ranks * cache // TOKEN_BYTES}


def _sglang_environment(runner: str) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1"}


FORKS = {
    "vllm": Fork(
        HERE / "offline_child.py",
        _vllm_engine,
        _vllm_environment,
        ("kvcached",),
        _vllm_ranks,
    ),
    "sglang": Fork(
        HERE / "offline_child_sglang.py",
        _sglang_engine,
        _sglang_environment,
        ("static", "kvcached"),
        _sglang_ranks,
    ),
}
