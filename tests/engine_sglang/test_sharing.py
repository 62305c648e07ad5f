"""Engines on one budget that cannot hold what all use, and what is left when one is killed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.beside import ROUND
from engine.processes import TESTS, Run, Started
from engine_sglang.processes import SglangEngines
from kvcached_core.budget import Budget, BudgetError, RowInfo

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MIB = 1 << 20
PAGE = 128 << 10
CAPACITY = 4 * MIB
REAPED_S = 2.0


@dataclass
class Story:
    one: Run
    other: Run  # killed at work
    seconds: float  # from its death until nothing of it was left
    left: list[RowInfo]  # in the end
    peaks: dict[str, int]  # bytes that each held at most while both worked


@pytest.fixture(scope="module")
def story(engines: SglangEngines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    gate = tmp_path_factory.mktemp("pair") / "gate"
    shared = {"budget": "pair", "capacity": CAPACITY, "page_size": PAGE}
    directory = engines.storage("pair")["budget_dir"]
    started: list[Started] = []

    def start(name: str, **job: object) -> Started:
        storage = {**shared, "name": name}
        started.append(engines.start_elastic(name, storage, gate=str(gate), **job))
        return started[-1]

    try:
        one = start("pair-one", rounds=1)
        other = start("pair-other", busy=str(gate.parent / "never"))
        budget: Budget | None = None

        def both_are_there() -> bool:
            nonlocal budget
            with contextlib.suppress(BudgetError):  # there is no record yet
                budget = budget or Budget.open(directory, "host:pair", 0, 0)
            return budget is not None and len(rows(budget)) == 2

        one.wait_until(both_are_there, "both have joined")
        assert budget is not None
        peaks = dict.fromkeys(rows(budget), 0)
        gate.touch()

        def a_round_is_done() -> bool:
            for name, row in rows(budget).items():
                peaks[name] = max(peaks[name], row.created)
            return ROUND in other.log.read_text()

        other.wait_until(a_round_is_done, "a round of the workload")
        other.kill()
        began = time.monotonic()
        while "pair-other" in rows(budget) and time.monotonic() - began < 60:
            time.sleep(0.01)
        seconds = time.monotonic() - began
        one.wait_for_end()
        yield Story(one.run(), other.run(), seconds, list(rows(budget).values()), peaks)
    finally:
        for engine in started:
            engine.kill()


def rows(budget: Budget) -> dict[str, RowInfo]:
    return {row.instance: row for row in budget.rows()}


@pytest.mark.conformance("parity")
def test_tokens_of_engines_that_share(story: Story, upstream: Run) -> None:
    assert story.one["tokens"] == upstream["tokens"]
    assert story.one["tokens_again"] == [upstream["tokens"]]


@pytest.mark.conformance("shutdown")
def test_what_was_killed_is_reaped_while_the_other_works(story: Story) -> None:
    assert story.seconds < REAPED_S
    assert story.left == []


@pytest.mark.conformance("parity")
def test_each_had_what_the_other_had_at_another_time(story: Story) -> None:
    assert all(PAGE < peak <= CAPACITY for peak in story.peaks.values())
    assert sum(story.peaks.values()) > CAPACITY


@pytest.mark.conformance("mutants")
def test_an_unmapped_live_page_kills_the_engine(engines: SglangEngines) -> None:
    storage = {"page_size": 256 << 10, "capacity": 16 * MIB}
    run = engines.elastic("mutant", storage, count=30, mutant=40)
    assert run.result is None
    assert "Segmentation fault" in run.log


VLLM = os.environ.get("KVCACHED_VENV")


@pytest.mark.skipif(VLLM is None, reason="KVCACHED_VENV names no environment of vLLM")
def test_sglang_and_vllm_share_a_budget(engines: SglangEngines, upstream: Run) -> None:
    """Each has more than the other leaves at its peak, and answers as it does alone."""
    assert VLLM is not None
    job = {
        "model": str(engines.model),
        "engine": {
            "kv_storage_backend": "kvcached",
            "kv_storage_config": engines.storage("mixed", capacity=CAPACITY, page_size=PAGE),
        },
    }
    folder = engines.model.parent
    (folder / "vllm.job").write_text(json.dumps(job))
    python = str(Path(VLLM) / "bin" / "python")
    runner = str(TESTS / "engine" / "runner.py")
    result = str(folder / "vllm.result")
    env = engines.environment() | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "PATH": f"{Path(VLLM) / 'bin'}:{os.environ['PATH']}",
    }
    assert python != sys.executable
    vllm = engines.launch("vllm", [python, runner, str(folder / "vllm.job"), result], env)
    try:
        shared = {"budget": "mixed", "capacity": CAPACITY, "page_size": PAGE}
        ours = engines.elastic("mixed", shared, rounds=1)
        vllm.wait_for_end()
        theirs = vllm.run()
    finally:
        vllm.kill()
    assert ours["tokens"] == upstream["tokens"]
    assert ours["tokens_again"] == [upstream["tokens"]]
    assert len({tuple(tokens) for tokens in theirs["tokens"]}) == 200
    assert ours["memory_peak"] + theirs["memory_peak"] > CAPACITY
