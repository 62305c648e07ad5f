"""Engines on a real GPU, over a random model of about a billion float32 weights.

By hand, each of these alone on a GPU in less than four minutes; several may share one. In brackets,
how many engines a command starts, each in 20 to 60 seconds::

    pytest -m gpu tests/gpu/test_tokens.py -k first                [4]
    pytest -m gpu tests/gpu/test_tokens.py -k second               [4]
    pytest -m gpu tests/gpu/test_fences.py -k first                [3]
    pytest -m gpu tests/gpu/test_fences.py -k second               [3]
    pytest -m gpu tests/gpu/test_features.py -k ngram              [2]
    pytest -m gpu tests/gpu/test_features.py -k draft_model        [2]
    pytest -m gpu tests/gpu/test_features.py -k eagle              [2]
    pytest -m gpu tests/gpu/test_fp8.py -k first                   [3]
    pytest -m gpu tests/gpu/test_fp8.py -k second                  [3]
    pytest -m gpu tests/gpu/test_alone.py -k fp8-first             [2]
    pytest -m gpu tests/gpu/test_alone.py -k fp8-second            [2]
    pytest -m gpu tests/gpu/test_alone.py -k lora                  [2]
    pytest -m gpu tests/gpu/test_holes.py -k FLASH_ATTN            [2]
    pytest -m gpu tests/gpu/test_holes.py -k TRITON_ATTN           [2]
    pytest -m gpu tests/gpu/test_holes.py -k FLASHINFER            [2, and its kernels' compilation]
    pytest -m gpu tests/gpu/test_holes.py -k own                   [2]
    pytest -m gpu tests/gpu/test_sleep.py                          [3]
    pytest -m gpu tests/gpu/test_sharing.py                        [3]

What was found is also written, as JSON, to the file that ``KVCACHED_GPU_RESULTS`` names, with the
end of the log of every engine that did not get to its end. ``KVCACHED_GPU_EAGER=1`` runs without
CUDA graphs.
"""

from __future__ import annotations

import os
from typing import Any

from engine import workload
from engine.processes import TESTS
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
# A sixth of what the requests that may run at once fill, with room for ten of max_model_len: with
# as little, 300 requests see some 16 preemptions. With a third they see none.
TIGHT_BLOCKS = workload.blocks_at_once(ON_GPU["max_num_seqs"], ON_GPU["block_size"]) // 6


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
