"""fp8 keys and values, many requests at once and short of memory: no more noise than static's.

What is rounded to eight bits flips with any other batch and changes answers by far more than
float32's sums do, static's too. So this is a comparison of noise and no proof: an error that
changed fewer than MARGIN of the answers would pass. The proof is in test_alone.
"""

from __future__ import annotations

import pytest

from engine.processes import Engines
from gpu.compare import compare_runs
from gpu.conftest import Note
from gpu.load import block_bytes, job, tight

pytestmark = [pytest.mark.gpu]

COUNT = 500
MARGIN = 0.1  # of the requests; some five standard deviations


def test_no_more_answers_differ_than_between_two_runs_of_static(
    engines: Engines, runner: str, figures: Note
) -> None:
    given = {"kv_cache_dtype": "fp8"}
    static = engines.run(f"static-fp8-{runner}", job(runner, COUNT, **given))
    other = engines.run(f"other-fp8-{runner}", job(runner, COUNT, max_num_seqs=100, **given))
    storage = tight(block_bytes(dtype_size=1))
    elastic = engines.elastic(f"tight-fp8-{runner}", storage, **job(runner, COUNT, **given))
    noise, ours = compare_runs(static, other), compare_runs(static, elastic)
    counts = [len(found.wrong) + len(found.different_ties) for found in (noise, ours)]
    preemptions = elastic["metrics"]["vllm:num_preemptions"]
    figures(
        "fp8, many at once",
        requests=COUNT,
        different=dict(zip(("static against static", "elastic"), counts, strict=True)),
        preemptions=preemptions,
        seconds={"static": static["run_seconds"], "elastic": elastic["run_seconds"]},
    )
    assert preemptions > 0
    assert counts[1] <= counts[0] + MARGIN * COUNT
