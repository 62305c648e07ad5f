"""On a real GPU, SGLang's elastic storage gives static's tokens while requests give way.

In the environment of SGLang's fork; `gpu.load` tells how to run it::

    pytest -m gpu tests/gpu/test_sglang.py                         [2]
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from engine.processes import TESTS, Run
from engine_sglang.processes import SglangEngines
from gpu.compare import compare_runs
from gpu.conftest import RESULTS, Note
from gpu.load import SHAPE, TIGHT_BLOCKS
from gpu.scale import REHEARSAL

pytestmark = [pytest.mark.gpu]

COUNT = 200 if REHEARSAL else 1000
ON_GPU: dict[str, Any] = {
    "device": "cuda",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "max_total_tokens": 1 << 16,
    "max_running_requests": 256,
    "chunked_prefill_size": 2048,
    "mem_fraction_static": 0.8,
    # As many as a short start allows.
    "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "cuda_graph_bs_prefill": [16, 64, 256, 512],
}
ENGINE: dict[str, Any] = {} if REHEARSAL else ON_GPU
ENVIRONMENT = {
    # Where the engine was put by hand, it may be found by this path alone.
    "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    "SGLANG_USE_CPU_ENGINE": "0",
    "OMP_NUM_THREADS": "8",
}
if REHEARSAL:
    ENVIRONMENT = {}
COMMON: dict[str, Any] = {"count": COUNT, "engine": ENGINE, "attention": "in_torch"}
# The scheduler reckons with short answers, also soon after that has cost a request its work.
BOLD = {
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "4",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "3",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "0.0",
}
TOKENS = 1280 if REHEARSAL else 16 * TIGHT_BLOCKS
LIMIT = TOKENS * SHAPE.kv_bytes_per_token(4)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> SglangEngines:
    folder = tmp_path_factory.mktemp("sglang")
    pytestconfig.stash[RESULTS].folder = folder
    return SglangEngines(folder, SHAPE, ENVIRONMENT)


@pytest.fixture(scope="module")
def static(engines: SglangEngines) -> Run:
    return engines.run("static", {**COMMON, "logprobs": True})


@pytest.fixture(scope="module")
def tight(engines: SglangEngines) -> Run:
    storage = {"capacity": "64GiB", "limit": LIMIT, "prefix_bound": LIMIT // 8}
    return engines.elastic("tight", storage, environment=BOLD, **COMMON)


def test_tokens_are_statics(static: Run, tight: Run, note: Note) -> None:
    found = compare_runs(static, tight)
    note(
        "SGLang, tokens",
        **found.summary(),
        retractions=tight["retractions"],
        cached_tokens=tight["cached_tokens"],
        limit=LIMIT,
        pool=tight["inside"]["pool"],
        backend=tight["inside"]["backend"],
        seconds={"static": static["run_seconds"], "elastic": tight["run_seconds"]},
        start_seconds={"static": static["start_seconds"], "elastic": tight["start_seconds"]},
    )
    assert len({tuple(tokens) for tokens in static["tokens"]}) > COUNT * 0.95
    assert tight["retractions"] > 0
    assert tight["cached_tokens"] > 0
    assert found.requests == COUNT
    assert len(found.different_ties) <= COUNT // 50
    found.check()


def test_what_can_be_taken_has_memory(tight: Run) -> None:
    assert tight["inside"]["looks"]["count"] > 50
    assert tight["inside"]["looks"]["wrong"] == []
    assert tight["inside"]["backend"]["pages_released"] > 0
