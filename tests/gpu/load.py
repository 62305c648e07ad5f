"""Engines on a real GPU, over a random model of about a billion float32 weights; when answers count
as equal.

Kernels on a GPU may sum in another order in another batch, so float32 answers can differ where two
tokens are nearly equally likely. Such a mismatch passes only if static's own two best logits lie
closer than GAP at the first token that differs, in at most one request of a hundred.

By hand: ``pytest -m gpu tests/gpu``; ``-k`` chooses a part, and several such runs may share a GPU.
What was found is also written, as JSON, to the file that ``KVCACHED_GPU_RESULTS`` names.
``KVCACHED_GPU_EAGER=1`` runs without CUDA graphs.
"""

from __future__ import annotations

import os
from typing import Any

from engine.processes import TESTS, Run
from gpu.scale import REHEARSAL
from support.tiny_model import DEFAULT, TinyLlama

LARGE = TinyLlama(layers=32, hidden=2048, heads=32, kv_heads=8, head_dim=64, peaked=0)
SHAPE = DEFAULT if REHEARSAL else LARGE
ON_GPU: dict[str, Any] = {
    "attention_backend": "TRITON_ATTN",
    "async_scheduling": True,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 8 << 30,
    "gpu_memory_utilization": 0.25,  # static's guard at start then leaves room for other engines
    "enforce_eager": os.environ.get("KVCACHED_GPU_EAGER") == "1",
    # As many as a short start allows; the largest is max_num_seqs.
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256]},
}
ENGINE: dict[str, Any] = {} if REHEARSAL else ON_GPU
ENVIRONMENT = {
    # Where the engine was put by hand, it may be found by this path alone.
    "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "8",
    "TORCHDYNAMO_DISABLE": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
if REHEARSAL:
    ENVIRONMENT = {}
RUNNERS = {"first": "0", "second": "1"}
COUNT = 2000
GAP = 1e-3
# What the workload needs at once is several times this: requests are preempted, prefixes evicted.
TIGHT_BLOCKS = 1024


def block_bytes(layers: int = SHAPE.layers, dtype_size: int = 4) -> int:
    """Bytes of keys and values in one block of a model of SHAPE with so many layers."""
    return ON_GPU["block_size"] * SHAPE.kv_bytes_per_token(dtype_size) * layers // SHAPE.layers


def tight(block: int = block_bytes()) -> dict[str, Any]:
    """Settings of a storage with room for TIGHT_BLOCKS blocks of so many bytes."""
    return {"capacity": "64GiB", "limit": f"{TIGHT_BLOCKS * block >> 20}MiB"}


def job(runner: str, count: int = COUNT, **engine: Any) -> dict[str, Any]:
    return {
        "count": count,
        "logprobs": True,
        "engine": {**ENGINE, **engine},
        "environment": {"VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner]},
    }


def differing(static: Run, elastic: Run) -> list[tuple[str, float]]:
    """Requests whose tokens differ, with static's gap at the first that does."""
    return [
        (static["request_ids"][i], static["gaps"][i][first])
        for i, tokens in enumerate(elastic["tokens"])
        if (first := first_difference(static["tokens"][i], tokens)) is not None
    ]


def first_difference(theirs: list[int], ours: list[int]) -> int | None:
    """Index of the first token that differs or is missing."""
    pairs = enumerate(zip(theirs, ours, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return min(len(theirs), len(ours)) if first is None and len(theirs) != len(ours) else first


def check(different: list[tuple[str, float]], count: int) -> None:
    assert len(different) <= count // 100
    assert all(gap < GAP for _, gap in different)


def summary(different: list[tuple[str, float]]) -> dict[str, Any]:
    return {"different": len(different), "gaps": sorted(gap for _, gap in different)[-20:]}
