"""Adapters (LoRA), short of memory: static's tokens, and each adapter has its own."""

from __future__ import annotations

from typing import Any

import pytest

from engine.processes import Engines, Run
from support.tiny_model import DEFAULT, make_adapter

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity")]

COUNT = 40


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # None without an adapter: vLLM's own code for CPUs gives those the last adapter of the batch.
    folder = tmp_path_factory.mktemp("adapters")
    adapters = [str(make_adapter(folder / str(seed), DEFAULT, seed)) for seed in (1, 2)]
    engine = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    return {"count": COUNT, "adapters": adapters, "engine": engine}


@pytest.fixture(scope="module")
def static(engines: Engines, job: dict[str, Any]) -> Run:
    return engines.run("static-lora", job)


def test_tokens_are_statics(engines: Engines, static: Run, job: dict[str, Any]) -> None:
    elastic = engines.elastic("lora", {"limit": "2MiB"}, **job)
    assert elastic["tokens"] == static["tokens"]
    assert elastic["metrics"]["vllm:num_preemptions"] > 0


def test_adapters_change_tokens(static: Run, upstream: Run) -> None:
    first, second = static["tokens"][0::2], static["tokens"][1::2]
    answers = zip(first, second, upstream["tokens"], strict=False)
    different = sum(len({tuple(tokens[:4]) for tokens in answer}) == 3 for answer in answers)
    assert different > 0.8 * len(first)
