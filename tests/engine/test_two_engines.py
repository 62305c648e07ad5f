"""Two real engines on one budget that cannot hold what both use."""

from __future__ import annotations

import pytest

from engine.processes import Engines, Run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity")]

MIB = 1 << 20
CAPACITY = 6 * MIB


@pytest.fixture(scope="module")
def pair(engines: Engines) -> dict[str, Run]:
    """One in two processes, one in a single one and without a prefix cache, started at once."""
    shared = {"budget": "pair", "capacity": CAPACITY}
    return engines.elastic_together(
        {
            "pair-a": {"storage": {**shared, "name": "a"}},
            "pair-b": {
                "storage": {**shared, "name": "b"},
                "in_process": True,
                "inside": True,
                "engine": {"enable_prefix_caching": False},
            },
        }
    )


@pytest.mark.parametrize("name", ["pair-a", "pair-b"])
def test_tokens_of_two_engines_on_one_budget(
    pair: dict[str, Run], upstream: Run, name: str
) -> None:
    assert pair[name]["tokens"] == upstream["tokens"]


def test_each_had_more_than_its_floor_and_both_less_than_they_would_alone(
    pair: dict[str, Run],
) -> None:
    peaks = [run["memory_peak"] for run in pair.values()]
    assert all(MIB < peak <= CAPACITY for peak in peaks)
    assert sum(peaks) > CAPACITY  # what one had, the other had at another time


def test_without_a_prefix_cache_nothing_is_kept(pair: dict[str, Run]) -> None:
    assert pair["pair-b"]["metrics"]["vllm:prefix_cache_hits"] == 0
    assert pair["pair-b"]["inside"]["events_cached"] == 0
