"""Engines on a real GPU, over a random model of about a billion float32 weights.

By hand: ``pytest -m gpu tests/gpu``. What was found is also written, as JSON, to the file that
``KVCACHED_GPU_RESULTS`` names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.processes import TESTS, Engines
from gpu.scale import REHEARSAL
from support.tiny_model import DEFAULT, TinyLlama

Note = Callable[..., None]

LARGE = TinyLlama(layers=32, hidden=2048, heads=32, kv_heads=8, head_dim=64, peaked=0)
SHAPE = DEFAULT if REHEARSAL else LARGE
ON_GPU: dict[str, Any] = {
    "attention_backend": "TRITON_ATTN",
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 8 << 30,
    "gpu_memory_utilization": 0.25,  # static's guard at start then leaves room for other engines
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


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"), SHAPE, ENVIRONMENT)


@pytest.fixture(scope="session")
def note() -> Note:
    """Keeps figures of a test under its name."""
    found: dict[str, Any] = {}

    def keep(name: str, **figures: Any) -> None:
        found[name] = figures
        print(name, json.dumps(figures))
        if path := os.environ.get("KVCACHED_GPU_RESULTS"):
            Path(path).write_text(json.dumps(found, indent=1) + "\n")

    return keep
