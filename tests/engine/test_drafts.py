"""Drafts, short of memory: upstream's tokens, with drafts that were used.

Those by a model and by an EAGLE head come from layers of their own, whose keys and values lie in
the same blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run
from support.tiny_model import make_draft, make_eagle_head

pytestmark = [pytest.mark.engine, pytest.mark.slow]

COUNT = 100


def ngram(target: Path, folder: Path) -> dict[str, Any]:
    return {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}


def draft_model(target: Path, folder: Path) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(make_draft(folder / "draft", target, 2))}


def eagle(target: Path, folder: Path) -> dict[str, Any]:
    return {"method": "eagle", "model": str(make_eagle_head(folder / "head", target))}


# The method, and a limit with too little room in it: layers of drafts make blocks larger.
LIMITS = {ngram: "3MiB", draft_model: "4MiB", eagle: "4MiB"}


@pytest.fixture(scope="module", params=list(LIMITS), ids=lambda method: method.__name__)
def drafted(
    request: pytest.FixtureRequest, engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    method = request.param
    given = method(engines.model, tmp_path_factory.mktemp("drafts"))
    engine = {"speculative_config": {"num_speculative_tokens": 3, **given}}
    storage = {"limit": LIMITS[method]}
    return engines.elastic(f"drafted-{method.__name__}", storage, count=COUNT, engine=engine)


def test_tokens_are_upstreams(drafted: Run, upstream: Run) -> None:
    assert drafted["tokens"] == upstream["tokens"][:COUNT]


def test_drafts_were_accepted_and_memory_was_short(drafted: Run) -> None:
    found = drafted["metrics"]
    assert found["vllm:spec_decode_num_accepted_tokens"] > 0
    assert (
        found["vllm:spec_decode_num_draft_tokens"] > found["vllm:spec_decode_num_accepted_tokens"]
    )
    assert found["vllm:num_preemptions"] > 0
    assert drafted["memory_peak"] <= 4 << 20
