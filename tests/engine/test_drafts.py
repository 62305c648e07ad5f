"""Drafts by n-gram, short of memory: upstream's tokens, with drafts that were used."""

from __future__ import annotations

import pytest

from engine.processes import Engines, Run

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}


@pytest.fixture(scope="module")
def drafted(engines: Engines) -> Run:
    engine = {"speculative_config": {**NGRAM, "prompt_lookup_min": 1}}
    return engines.elastic("drafted", {"limit": "3MiB"}, engine=engine)


def test_tokens_are_upstreams(drafted: Run, upstream: Run) -> None:
    assert drafted["tokens"] == upstream["tokens"]


def test_drafts_were_accepted_and_memory_was_short(drafted: Run) -> None:
    found = drafted["metrics"]
    assert found["vllm:spec_decode_num_accepted_tokens"] > 0
    assert (
        found["vllm:spec_decode_num_draft_tokens"] > found["vllm:spec_decode_num_accepted_tokens"]
    )
    assert found["vllm:num_preemptions"] > 0
    assert drafted["memory_peak"] <= 3 << 20
