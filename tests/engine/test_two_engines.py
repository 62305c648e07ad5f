"""Two real engines on one budget that cannot hold what both use; and one that is killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from engine.processes import Engines, Run, Started
from kvcached_core.budget import Budget, Grant, RowInfo

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MIB = 1 << 20
CAPACITY = 6 * MIB
PLENTY = 2**62
GONE_S = 2.0  # the memory of a killed engine is the others' within this time
HANG_S = 300.0


# --- both are short ---


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


# --- kill -9 ---


def row_of(budget: Budget, instance: str) -> RowInfo | None:
    return next((row for row in budget.rows() if row.instance == instance), None)


def wait_until_it_holds(budget: Budget, engine: Started, instance: str, least: int) -> None:
    deadline = time.monotonic() + HANG_S
    while (row := row_of(budget, instance)) is None or row.created < least:
        assert engine.process.poll() is None, engine.log.read_text()[-4000:]
        assert time.monotonic() < deadline, f"{instance} holds {row and row.created} bytes"
        time.sleep(0.02)


def seconds_until_granted(budget: Budget, bytes_wanted: int) -> float:
    """A member that needs memory gets it, and gives it back."""
    row = budget.join("heir", 0, PLENTY)
    began = time.monotonic()
    while budget.lease(row, bytes_wanted, PLENTY, 1000) != Grant.GRANTED:
        assert time.monotonic() - began < HANG_S
        time.sleep(0.005)
    seconds = time.monotonic() - began
    budget.unlease(row, bytes_wanted)
    budget.leave(row)
    return seconds


def start(engines: Engines, name: str, shared: dict[str, object], **job: object) -> Started:
    storage = engines.storage(name, **shared, name=name)
    engine = {"kv_storage_backend": "kvcached", "kv_storage_config": storage}
    return engines.spawn(name, {"engine": engine, **job}, engines.environment())


def test_the_memory_of_a_killed_engine_goes_to_the_others(
    engines: Engines, upstream: Run, tmp_path: Path
) -> None:
    shared: dict[str, object] = {"budget": "kill", "capacity": 8 * MIB}
    victim = start(engines, "victim", shared, rounds=1000)
    witness = start(engines, "witness", shared)
    try:
        directory = engines.storage("victim")["budget_dir"]
        victim.wait_for_log("on budget host:kill")
        budget = Budget.open(directory, "host:kill", 0, 0)
        wait_until_it_holds(budget, victim, "victim", 2 * MIB)
        wait_until_it_holds(budget, witness, "witness", MIB)
        time.sleep(random.uniform(0, 1))
        victim.kill()
        # More than the floors and the witness leave, unless the victim's part has come back.
        witness_row = row_of(budget, "witness")
        assert witness_row is not None
        others = max(witness_row.lease, witness_row.floor)
        seconds = seconds_until_granted(budget, 8 * MIB - others - 2 * MIB)
        assert row_of(budget, "victim") is None
        print(f"granted {seconds:.3f} s after the kill")
        assert seconds < GONE_S
        witness.process.wait(HANG_S)
        assert witness.run()["tokens"] == upstream["tokens"]
    finally:
        victim.kill()
        witness.kill()
    assert budget.created() == 0 and budget.rows() == []


def test_an_engine_killed_at_its_start_leaves_its_name_and_its_memory(engines: Engines) -> None:
    shared: dict[str, object] = {"budget": "early", "capacity": 8 * MIB}
    directory = engines.storage("early")["budget_dir"]
    engine = start(engines, "early", shared, rounds=1000)
    engine.wait_for_log("KV storage: kvcached, rank 0 of engine early")
    time.sleep(random.uniform(0, 0.5))
    engine.kill()
    budget = Budget.open(directory, "host:early", 0, 0)
    assert seconds_until_granted(budget, 8 * MIB) < GONE_S
    row = budget.join("early", 0, MIB)  # the name is free
    budget.leave(row)
