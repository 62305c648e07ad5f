"""A sleeping engine holds the null page and no floor, whatever it was doing; awake it is as before.

On a CPU vLLM's own sleep does nothing more than warn, so what falls here is ours.
"""

from __future__ import annotations

import pytest

from engine.processes import Engines, Run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity")]

PAGE = 256 << 10


@pytest.fixture(scope="module", params=["two processes", "one process"])
def slept(request: pytest.FixtureRequest, engines: Engines) -> Run:
    if request.param == "two processes":
        run: Run = request.getfixturevalue("unbounded")
        return run
    return engines.elastic("one-process", {}, sleeps=[0, 3], in_process=True)


def test_asleep_it_holds_the_null_page(slept: Run) -> None:
    assert [sleep["held"] for sleep in slept["sleeps"]] == [PAGE, PAGE]
    assert all(sleep["held_before"] > PAGE for sleep in slept["sleeps"])


def test_the_floor_is_given_up_and_asked_back_with_the_cache(slept: Run) -> None:
    for sleep in slept["sleeps"]:
        assert sleep["floor"] == sleep["floor_with_weights"] == 0 < sleep["floor_awake"]


def test_awake_it_answers_as_before(slept: Run, upstream: Run) -> None:
    assert slept["tokens"] == upstream["tokens"]
    assert slept["tokens_awake"] == upstream["tokens"]
