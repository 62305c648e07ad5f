"""What any storage backend must do on vLLM, judged from outside: ours, the tests' own, or yours.

Which one is tests/support/any_backend.py's matter; by default the tests' own, bounded.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.processes import Engines, Run
from engine.runner import READY
from support.any_backend import Subject, from_environment, installed, run_to_its_end

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL = 3 << 20  # bytes of cache: 48 blocks of the tiny model, 16 for the longest request
COUNT = 80


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    if (named := from_environment("vllm")) is not None:
        return named
    group, target = "vllm.kv_storage_backends", "engine.bounded:Bounded"
    site = installed(tmp_path_factory.mktemp("site"), group, "bounded", target)
    return Subject("bounded", tight={"blocks": 40}, path=site)


def judged(engines: Engines, subject: Subject, name: str, **job: Any) -> Run:
    """The workload in one process, with the referee between the halves and vLLM."""
    referee = {"name": subject.name, **job.pop("referee")}
    return engines.run(name, subject.job(engines, referee=referee, **job), in_process=True)


@pytest.fixture(scope="module")
def tight(engines: Engines, subject: Subject) -> Run:
    """Requests are preempted. What nobody uses is overwritten, if that is allowed."""
    engine = {"kv_cache_memory_bytes": SMALL}
    more = {"config": subject.tight, "referee": {"poison": subject.accessible}}
    return judged(engines, subject, "any-tight", engine=engine, **more)


@pytest.fixture(scope="module")
def harmed(engines: Engines, subject: Subject) -> Run:
    """With room for everything, and a block that is read is overwritten."""
    return judged(engines, subject, "any-harmed", count=COUNT, referee={"harm": 60})


@pytest.fixture(scope="module")
def ended(engines: Engines, subject: Subject) -> tuple[Run, list[str]]:
    """Two processes and room for everything; what they left when they had ended by themselves."""
    return run_to_its_end(engines, subject.job(engines, count=COUNT), READY)


@pytest.mark.conformance("parity", backend=True)
def test_tokens_are_upstreams(ended: tuple[Run, list[str]], upstream: Run) -> None:
    run, _ = ended
    assert run["tokens"] == upstream["tokens"][:COUNT]
    assert run["fork"]


@pytest.mark.conformance("parity", backend=True)
def test_tokens_are_upstreams_under_preemption(tight: Run, upstream: Run) -> None:
    assert tight["metrics"]["vllm:num_preemptions"] > 0
    assert tight["tokens"] == upstream["tokens"]


@pytest.mark.conformance("interface", backend=True)
def test_no_promise_is_broken(tight: Run, harmed: Run) -> None:
    assert tight["referee"]["breaches"] == []
    assert harmed["referee"]["breaches"] == []


@pytest.mark.conformance("interface", backend=True)
def test_both_halves_are_called(tight: Run) -> None:
    """So that nothing was judged that never happened. A backend may have no half of its own beside
    the scheduler."""
    calls = tight["referee"]["calls"]
    worker = ("allocation_scope", "allocate", "begin_step", "end_step", "shutdown")
    assert all(calls[name] > 0 for name in worker)
    if "bind" in calls:
        assert calls["bind"] == 1
        assert calls["reserve"] > 200 and calls["take_update"] >= calls["begin_step"] > 200
        assert calls["popleft_n"] > 200 and calls["shutdown"] >= 2


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
        assert tight["referee"]["poisoned"] > 100
        assert tight["tokens"] == upstream["tokens"]
    else:
        memory = harmed["memory"]
        assert 0 < memory["readable"] < memory["bytes"]


@pytest.mark.conformance("mutants", backend=True)
def test_a_corrupt_block_changes_its_readers(harmed: Run, upstream: Run) -> None:
    pairs = zip(harmed["request_ids"], harmed["tokens"], upstream["tokens"], strict=False)
    changed = {name.split("-")[0] for name, ours, theirs in pairs if ours != theirs}
    owners = {owner.split("-")[0] for owner in harmed["referee"]["owners"]}
    assert len(owners) >= 2
    assert len(changed & owners) > len(owners) / 2
