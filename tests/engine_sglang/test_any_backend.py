"""What any storage backend must do on SGLang, judged from outside: ours, the tests' own, or yours.

Which one is tests/support/any_backend.py's matter; by default the tests' own, scarce.py.
"""

from __future__ import annotations

import pytest

from engine.processes import Run
from engine_sglang.processes import SglangEngines
from engine_sglang.runner import READY
from support.any_backend import Subject, from_environment, installed, run_to_its_end

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

FEW = 1280  # slots: too few for sixteen requests, more than enough for one
COUNT = 80
SGLANGS = ("sem.mp-", "sglang_loads_")  # in shared memory: what SGLang itself leaves when it ends
# The scheduler reckons with short answers, also soon after that has cost a request its work.
BOLD = {
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "4",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "3",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "0.0",
}


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    if (named := from_environment("sglang")) is not None:
        return named
    group, target = "sglang.kv_storage_backends", "engine_sglang.scarce:Scarce"
    site = installed(tmp_path_factory.mktemp("site"), group, "scarce", target)
    return Subject("scarce", config={"floor": 4096}, tight={"floor": 1024}, path=site)


@pytest.fixture(scope="module")
def tight(engines: SglangEngines, subject: Subject) -> Run:
    """Requests are retracted. What nobody uses is overwritten, if that is allowed."""
    engine = {"max_total_tokens": FEW, "disable_overlap_schedule": True}
    referee = {"poison": subject.accessible}
    more = {"config": subject.tight, "engine": engine, "environment": BOLD, "referee": referee}
    return engines.run("any-tight", subject.job(engines, **more))


@pytest.fixture(scope="module")
def harmed(engines: SglangEngines, subject: Subject) -> Run:
    """With overlap and room for everything; what one request reads is overwritten. In the end
    prefixes are dropped, which may fill all slots: nobody uses anything then."""
    job = subject.job(engines, count=COUNT, referee={"harm": 40}, flush=True)
    return engines.run("any-harmed", job)


@pytest.fixture(scope="module")
def ended(engines: SglangEngines, subject: Subject) -> tuple[Run, list[str]]:
    """With overlap and room for everything; what it left when it had ended by itself."""
    return run_to_its_end(engines, subject.job(engines, count=COUNT), READY, SGLANGS)


@pytest.mark.conformance("parity", backend=True)
def test_tokens_are_upstreams(ended: tuple[Run, list[str]], upstream: Run) -> None:
    run, _ = ended
    assert run["tokens"] == upstream["tokens"][:COUNT]
    assert run["fork"]


@pytest.mark.conformance("parity", backend=True)
def test_tokens_are_upstreams_while_requests_give_way(tight: Run, upstream: Run) -> None:
    assert tight["retractions"] > 0
    assert tight["tokens"] == upstream["tokens"]


@pytest.mark.conformance("interface", backend=True)
def test_no_promise_is_broken(tight: Run, harmed: Run) -> None:
    assert tight["inside"]["referee"]["breaches"] == []
    assert harmed["inside"]["referee"]["breaches"] == []


@pytest.mark.conformance("interface", backend=True)
def test_what_was_judged_happened(tight: Run) -> None:
    calls = tight["inside"]["referee"]["calls"]
    assert calls["bind"] == calls["token_allocator_cls"] == 1
    assert calls["new_buffer"] == len(tight["inside"]["tensors"]) > 0
    assert calls["alloc"] > 200 and calls["free"] > 200
    assert calls["begin_step"] >= calls["on_forward"] > 200


@pytest.mark.conformance("shutdown", backend=True)
def test_nothing_is_left_behind(ended: tuple[Run, list[str]]) -> None:
    run, left = ended
    assert run.returncode == 0
    assert left == []


@pytest.mark.conformance("poison", backend=True)
def test_what_nobody_uses_may_hold_anything_or_cannot_be_read(
    tight: Run, harmed: Run, subject: Subject, upstream: Run
) -> None:
    if subject.accessible:
        assert tight["inside"]["referee"]["poisoned"] > 1000
        assert tight["tokens"] == upstream["tokens"]
    else:
        found = harmed["inside"]["referee"]
        assert 0 < found["readable"] < found["bytes"]


@pytest.mark.conformance("mutants", backend=True)
def test_corrupt_slots_change_their_readers_answers(harmed: Run, upstream: Run) -> None:
    pairs = list(zip(harmed["tokens"], upstream["tokens"], strict=False))
    assert len(pairs) == COUNT
    assert 0 < sum(ours != theirs for ours, theirs in pairs) < COUNT
