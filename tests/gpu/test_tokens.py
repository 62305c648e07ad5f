"""On a real GPU, elastic storage gives static's tokens, under preemptions and evictions."""

from __future__ import annotations

import pytest

from engine.processes import Engines, Run
from gpu.compare import compare_runs
from gpu.conftest import Note
from gpu.load import COUNT, job, tight

pytestmark = [pytest.mark.gpu]


def test_static_in_other_batches_differs_in_ties_only(
    static: Run, engines: Engines, runner: str, figures: Note
) -> None:
    found = compare_runs(static, engines.run(f"other-{runner}", job(runner, max_num_seqs=100)))
    figures("static against static", **found.summary())
    found.check()


def test_tokens_are_statics(static: Run, engines: Engines, runner: str, figures: Note) -> None:
    elastic = engines.elastic(f"tight-{runner}", tight(), **job(runner))
    found = compare_runs(static, elastic)
    figures(
        "tokens",
        **found.summary(),
        preemptions=elastic["metrics"]["vllm:num_preemptions"],
        prefix_hits=elastic["metrics"]["vllm:prefix_cache_hits"],
        seconds={"static": static["run_seconds"], "elastic": elastic["run_seconds"]},
        start_seconds={"static": static["start_seconds"], "elastic": elastic["start_seconds"]},
    )
    assert len({tuple(tokens) for tokens in static["tokens"]}) > COUNT * 0.95
    assert elastic["metrics"]["vllm:num_preemptions"] > 0
    assert elastic["metrics"]["vllm:prefix_cache_hits"] > 10_000
    assert found.requests == COUNT
    assert len(found.different_ties) <= COUNT // 50
    found.check()


def test_harm_to_one_page_shows(static: Run, engines: Engines, runner: str, figures: Note) -> None:
    harmed = engines.elastic(
        f"poison-{runner}", tight(), in_process=True, mutant=["poison", 60], **job(runner, 300)
    )
    owners = {owner.split("-")[0] for owner in harmed["owners"]}
    answers = zip(harmed["request_ids"], harmed["tokens"], static["tokens"], strict=False)
    changed = {request.split("-")[0] for request, ours, theirs in answers if ours != theirs}
    figures("harm", owners=len(owners), changed=len(changed & owners))
    assert len(owners) >= 2
    assert len(changed & owners) >= 0.9 * len(owners)
