"""Pages go behind the work that reads them, and nothing but the fences sees to that.

Steps are scheduled one ahead. A request that ends by a token or is aborted is part of the step that
is under way by then; its blocks are free at once, its pages go with the next update. (One that ends
by its length is not scheduled again, so its blocks have no reader left.) Each step begins late on
the device, so what it reads is given back long before it does: with fences the answers stay right,
and without them the device faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.processes import Engines, Run
from engine.workload import until_stop
from gpu.load import check, first_difference, job, summary

pytestmark = [pytest.mark.gpu]

Note = Callable[..., None]

DELAY_CYCLES = 100_000_000  # some 50 ms: several times what the host needs for a step
# A page is one block, and none is kept that no request uses.
CHURN = {"capacity": "64GiB", "prefix_bound": "0B", "reserve_pages": 0}


def hasty(engines: Engines, runner: str, name: str, **mutation: Any) -> Run:
    given = job(runner)
    return engines.elastic(
        f"{name}-{runner}",
        CHURN,
        in_process=True,
        scenarios=["hasty"],
        delay_cycles=DELAY_CYCLES,
        engine=given["engine"],
        environment=given["environment"],
        **mutation,
    )


def differing_from(static: Run, found: dict[str, Any]) -> list[tuple[str, float]]:
    """Requests with other tokens than static's up to one that ends them, and the gap there."""
    result = []
    for request, ours in found["tokens"].items():
        first = first_difference(until_stop(static["tokens"][int(request)]), ours)
        if first is not None:
            gaps = static["gaps"][int(request)]
            result.append((request, gaps[min(first, len(gaps) - 1)]))
    return result


def test_pages_go_behind_a_late_device(
    static: Run, engines: Engines, runner: str, figures: Note
) -> None:
    found = hasty(engines, runner, "late")["hasty"]
    different = differing_from(static, found)
    answers = {int(request): tokens for request, tokens in found["tokens"].items()}
    stopped = sum(len(tokens) < len(static["tokens"][i]) for i, tokens in answers.items())
    figures(
        "late device", **summary(different), stopped=stopped, aborted=len(set(found["aborted"]))
    )
    assert stopped > 50 and len(set(found["aborted"])) > 5
    assert len(answers) + len(set(found["aborted"])) == 200
    assert found["used"] == 0
    check(different, 200)


def test_without_fences_it_shows(static: Run, engines: Engines, runner: str, figures: Note) -> None:
    harmed = hasty(engines, runner, "unfenced", unfenced=True)
    died = harmed.result is None
    wrong = None if died else len(differing_from(static, harmed["hasty"]))
    figures("unfenced", returncode=harmed.returncode, different=wrong, log=harmed.log[-600:])
    if died:  # and for the right reason
        assert "illegal memory access" in harmed.log or "is lost" in harmed.log
    else:
        assert wrong is not None and wrong > 20
