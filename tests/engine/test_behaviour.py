"""What happens in the middle: aborts, resets of the prefix cache, and nothing at all."""

import pytest

from engine.processes import Engines, Run
from engine.workload import until_stop

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity")]

STEPS = 10_000


@pytest.fixture(scope="module")
def driven(engines: Engines) -> Run:
    """Stepped by hand, with so little memory that requests are preempted as well."""
    return engines.elastic(
        "driven", {"limit": "3MiB"}, in_process=True, scenarios=["abort", "reset", "steady"]
    )


def test_an_abort_changes_nobody_elses_tokens(driven: Run, upstream: Run) -> None:
    found = driven["abort"]
    assert len(found["aborted"]) > 20
    kept = {index: upstream["tokens"][index] for index in map(int, found["tokens"])}
    assert len(kept) == 120 - len(set(found["aborted"]))
    assert {int(index): tokens for index, tokens in found["tokens"].items()} == kept


def test_an_abort_frees_what_was_used(driven: Run) -> None:
    assert driven["abort"]["used"] == 0


def test_answers_that_end_by_a_token(engines: Engines, upstream: Run) -> None:
    storage = {"prefix_bound": "0B", "reserve_pages": 0}
    found = engines.elastic("hasty", storage, in_process=True, scenarios=["hasty"])["hasty"]
    kept = {int(index): tokens for index, tokens in found["tokens"].items()}
    assert kept == {index: until_stop(upstream["tokens"][index]) for index in kept}
    assert sum(len(tokens) < len(upstream["tokens"][index]) for index, tokens in kept.items()) > 50
    assert len(kept) + len(set(found["aborted"])) == 200 and found["used"] == 0


def test_a_reset_in_the_middle_changes_no_tokens(driven: Run, upstream: Run) -> None:
    found = driven["reset"]
    assert False in found["answers"] and True in found["answers"]  # refused, and with preemption
    tokens = {int(index): tokens for index, tokens in found["tokens"].items()}
    assert tokens == dict(enumerate(upstream["tokens"][:80]))


def test_a_reset_leaves_no_memory_behind(driven: Run) -> None:
    found = driven["reset"]
    assert found["cached_before"] > 0
    assert found["used"] == found["cached"] == 0
    assert found["owned"] <= 1 + 2  # the null page and the reserve


def test_steady_steps_make_no_system_call(driven: Run) -> None:
    found = driven["steady"]
    assert found["steps"] >= STEPS
    assert found["hooks"]["take_update"] >= STEPS and found["hooks"]["begin_step"] >= STEPS
    assert found["hooks"]["popleft_n"] > 500
    assert found["marks"] >= 6 * STEPS  # a begin and an end round three hooks, at least
    assert found["calls"] == {}


def test_a_steady_step_makes_no_driver_call(driven: Run) -> None:
    driver = driven["steady"]["driver"]
    assert driver["before"] == driver["after"]
