"""Engines of several ranks, by tensor and by pipeline parallelism: tokens are those of upstream at
the same shape, and a rank that is killed or stops ends the engine, which gives everything back."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run, Started
from engine.runner import READY
from kvcached_core.budget import Budget

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SHAPES = {"tp": {"tensor_parallel_size": 2}, "pp": {"pipeline_parallel_size": 2}}
PAGE = 256 << 10
COUNT = 100
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
# A step that takes longer has lost a rank.
STEP_S = 20
CAPACITY = 64 << 20


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def job(shape: str, **more: Any) -> dict[str, Any]:
    return {"engine": SHAPES[shape], "count": COUNT, "environment": ENVIRONMENT, **more}


@pytest.fixture(scope="module")
def reference(engines: Engines, shape: str) -> Run:
    return engines.run(f"upstream-{shape}", job(shape), upstream=True)


@pytest.fixture(scope="module")
def unbounded(engines: Engines, shape: str) -> Run:
    """Cached prefixes stay, until they are dropped; and it sleeps, idle and in the midst of three
    requests."""
    return engines.elastic(f"unbounded-{shape}", {}, **job(shape, sleeps=[0, 3], reset=True))


@pytest.fixture(scope="module")
def tight(engines: Engines, shape: str) -> Run:
    """Each rank may have six pages, and keeps no prefix."""
    storage = {"limit": 6 * PAGE, "prefix_bound": "0B"}
    return engines.elastic(f"tight-{shape}", storage, **job(shape))


def test_tokens_are_upstreams(unbounded: Run, reference: Run) -> None:
    assert unbounded["tokens"] == reference["tokens"]
    assert len({tuple(tokens) for tokens in reference["tokens"]}) == COUNT


def test_memory_follows_use_at_both_ranks(unbounded: Run) -> None:
    assert unbounded["reset"] is True
    assert unbounded["memory_after_run"] > 20 * PAGE
    assert unbounded["memory_after_reset"] <= 2 * 4 * PAGE


def test_tokens_are_upstreams_under_preemption(tight: Run, reference: Run) -> None:
    assert tight["metrics"]["vllm:num_preemptions"] > 0
    assert tight["tokens"] == reference["tokens"]
    assert 0 < tight["memory_peak"] <= 2 * 6 * PAGE
    assert tight["memory_after_run"] <= 2 * 3 * PAGE


def test_asleep_each_rank_holds_its_null_page_and_its_floor(unbounded: Run) -> None:
    for sleep in unbounded["sleeps"]:
        assert sleep["held_before"] > sleep["held"] == 2 * PAGE
        assert sleep["floor"] == sleep["floor_awake"] > 0


def test_awake_it_answers_as_before(unbounded: Run, reference: Run) -> None:
    assert unbounded["tokens_awake"] == reference["tokens"]


def test_both_ranks_say_what_they_reserved(unbounded: Run) -> None:
    for rank in (0, 1):
        assert f"KV storage: kvcached, rank {rank} of engine" in unbounded.log


# --- both at once ---

FEW = 40


def test_stages_of_two_ranks_each(engines: Engines) -> None:
    """Four ranks. Stages do not change what is computed, so the tokens are those of one stage."""
    both = SHAPES["tp"] | SHAPES["pp"]
    given = {**job("tp"), "engine": both, "count": FEW}
    given["environment"] = {"VLLM_CPU_OMP_THREADS_BIND": "0|1|0|1"}
    four = engines.elastic("four", {"limit": 3 * PAGE, "prefix_bound": "0B"}, **given)
    one_stage = engines.run("upstream-tp", job("tp"), upstream=True)
    assert four["tokens"] == one_stage["tokens"][:FEW]
    assert four["metrics"]["vllm:num_preemptions"] > 0
    assert 0 < four["memory_peak"] <= 4 * 3 * PAGE
    assert four["memory_after_run"] <= 4 * 3 * PAGE
    for rank in range(4):
        assert f"KV storage: kvcached, rank {rank} of engine" in four.log


# --- a rank is hit ---


@contextmanager
def at_work(engines: Engines, name: str, gate: Path) -> Iterator[tuple[Started, Budget]]:
    """An engine that would go on for long, as soon as it holds some memory."""
    environment = {**ENVIRONMENT, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(STEP_S)}
    hit = job("tp", gate=str(gate), rounds=100, environment=environment)
    engine = engines.start_elastic(name, {"capacity": CAPACITY, "name": name}, **hit)
    try:
        engine.wait_for_log(READY)
        gate.touch()
        directory = engines.storage(name)["budget_dir"]
        budget = Budget.open(directory, f"host:{name}", 0, 0)
        wait_until_it_holds(engine, budget, 8 * PAGE)
        yield engine, budget
    finally:
        engine.kill()


def wait_until_it_holds(engine: Started, budget: Budget, least: int) -> None:
    def holds() -> bool:
        return [row.created >= least for row in budget.rows()] == [True, True]

    engine.wait_until(holds, f"two ranks with {least} bytes each")


def rank_of(engine: Started, number: int) -> int:
    found = re.search(rf"\(Worker_TP{number} pid=(\d+)\)", engine.log.read_text())
    assert found is not None
    return int(found[1])


def check_that_it_ended(engine: Started, budget: Budget) -> None:
    engine.wait_for_end()
    assert engine.process.returncode != 0
    budget.reap()
    assert budget.rows() == []
    assert "Traceback" in engine.run().log  # and not in silence


def test_a_rank_that_stops_for_a_while_and_then_is_killed(engines: Engines, tmp_path: Path) -> None:
    rng = random.Random(time.monotonic_ns())
    with at_work(engines, "hit-killed", tmp_path / "gate") as (engine, budget):
        victim = rank_of(engine, rng.randrange(2))
        kill(victim, signal.SIGSTOP)
        time.sleep(rng.uniform(0.5, 2))
        kill(victim, signal.SIGCONT)
        steps = engine.log.stat().st_size
        time.sleep(rng.uniform(0.5, 2))
        assert engine.process.poll() is None, f"ended after {steps} bytes of log"
        kill(victim, signal.SIGKILL)
        check_that_it_ended(engine, budget)


def test_a_rank_that_stays_stopped(engines: Engines, tmp_path: Path) -> None:
    rng = random.Random(time.monotonic_ns())
    with at_work(engines, "hit-stopped", tmp_path / "gate") as (engine, budget):
        kill(rank_of(engine, rng.randrange(2)), signal.SIGSTOP)
        check_that_it_ended(engine, budget)
