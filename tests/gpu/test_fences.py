"""Pages go behind the work that reads them, and nothing but the fences sees to that.

Steps are scheduled one ahead. A request that ends by a token or is aborted is part of the step that
is under way by then; its blocks are free at once, its pages go with the next update. (One that ends
by its length is not scheduled again, so its blocks have no reader left.) Each step begins late on
the device, so what it reads is given back long before it does: with fences the answers stay right,
and without them the device faults.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.processes import Engines, Run
from engine.workload import until_stop
from gpu.compare import Comparison, compare
from gpu.conftest import Note
from gpu.load import job

pytestmark = [pytest.mark.gpu]

COUNT = 200  # of `hasty`

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


@pytest.fixture(scope="module")
def reference(engines: Engines, runner: str) -> Run:
    return engines.run(f"static-{runner}-{COUNT}", job(runner, COUNT))


def compare_hasty(static: Run, found: dict[str, Any]) -> Comparison:
    """With static's answers up to a token that ends them."""
    answers = [(int(request), tokens) for request, tokens in found["tokens"].items()]
    return compare(static, answers, expected=until_stop)


def test_pages_go_behind_a_late_device(
    reference: Run, engines: Engines, runner: str, figures: Note
) -> None:
    found = hasty(engines, runner, "late")["hasty"]
    compared = compare_hasty(reference, found)
    answers = {int(request): tokens for request, tokens in found["tokens"].items()}
    stopped = sum(len(tokens) < len(reference["tokens"][i]) for i, tokens in answers.items())
    aborted = len(set(found["aborted"]))
    figures("late device", **compared.summary(), stopped=stopped, aborted=aborted)
    assert stopped > 50 and aborted > 5
    assert len(answers) + aborted == COUNT
    assert found["used"] == 0
    compared.check()


def test_without_fences_it_shows(
    reference: Run, engines: Engines, runner: str, figures: Note
) -> None:
    harmed = hasty(engines, runner, "unfenced", unfenced=True)
    died = harmed.result is None
    wrong = None if died else len(compare_hasty(reference, harmed["hasty"]).wrong)
    figures("unfenced", returncode=harmed.returncode, different=wrong, log=harmed.log[-600:])
    if died:  # and for the right reason
        assert "illegal memory access" in harmed.log or "is lost" in harmed.log
    else:
        assert wrong is not None and wrong > 20
