"""With the default backend the fork is upstream: same allocators, tensors, slots and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.processes import Run
from engine_sglang.processes import SglangEngines

SERIES = Path(__file__).resolve().parents[2] / "patches" / "sglang"

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.conformance("static", core=True)]

# Job, least number of slots handed out. Larger pages take Triton, which is interpreted here.
JOBS: dict[int, tuple[dict[str, Any], int]] = {
    1: ({}, 10_000),
    16: (
        {"count": 40, "engine": {"page_size": 16}, "environment": {"TRITON_INTERPRET": "1"}},
        2_000,
    ),
}


@pytest.fixture(
    scope="module", params=[1, pytest.param(16, marks=pytest.mark.conformance("static"))]
)
def pair(request: pytest.FixtureRequest, engines: SglangEngines) -> tuple[Run, Run, int]:
    """Fork and upstream over the same job."""
    job, least = JOBS[request.param]
    if request.param == 1:
        theirs = request.getfixturevalue("upstream")
    else:
        theirs = engines.run(f"upstream-{request.param}", dict(job), upstream=True)
    return engines.run(f"static-{request.param}", dict(job)), theirs, least


def test_it_is_the_fork_that_ran(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, _ = pair
    assert ours["fork"] and not theirs["fork"]
    assert ours["version"] == theirs["version"]
    assert ours["version"] in {path.name for path in SERIES.iterdir()}


def test_tokens_are_upstreams(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, _ = pair
    assert len(theirs["tokens"]) >= 40
    assert ours["tokens"] == theirs["tokens"]
    assert ours["cached_tokens"] == theirs["cached_tokens"] > 0


def test_sequence_of_slots_is_upstreams(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, least = pair
    assert len(theirs["inside"]["slots"]) > least
    assert ours["inside"]["slots"] == theirs["inside"]["slots"]
    assert ours["inside"]["free"] == theirs["inside"]["free"]


def test_tensors_are_upstreams(pair: tuple[Run, Run, int]) -> None:
    ours, theirs, _ = pair
    assert len(theirs["inside"]["tensors"]) == 8
    assert ours["inside"]["tensors"] == theirs["inside"]["tensors"]
    assert ours["inside"]["offsets"] == theirs["inside"]["offsets"]


@pytest.mark.parametrize(
    "what", ["allocator", "pool", "tree", "max_total_num_tokens", "max_req_len", "forward_ct"]
)
def test_the_rest_is_upstreams(pair: tuple[Run, Run, int], what: str) -> None:
    ours, theirs, _ = pair
    assert ours["inside"][what] == theirs["inside"][what]


def test_the_allocator_is_the_one_for_that_page_size(pair: tuple[Run, Run, int]) -> None:
    ours, _, least = pair
    wanted = "TokenToKVPoolAllocator" if least == JOBS[1][1] else "PagedTokenToKVPoolAllocator"
    assert ours["inside"]["allocator"].rpartition(".")[2] == wanted
