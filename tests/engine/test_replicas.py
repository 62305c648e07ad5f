"""Two replicas of a data-parallel engine are two instances that share a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine import workload
from engine.device_use import Watch
from engine.processes import Engines, Run
from engine.server import Server, serve, until
from kvcached_core.budget import open_device_budget

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PAGE = 256 << 10
CAPACITY = 14 * PAGE  # each alone would take more
COUNT = 60
REPLICAS = {"replicas/dp0", "replicas/dp1"}


@dataclass
class Story:
    answers: list[list[int]]
    peaks: dict[str, int]
    peak_of_both: int
    log: str


@pytest.fixture(scope="module")
def story(engines: Engines) -> Iterator[Story]:
    storage = {"capacity": CAPACITY, "name": "replicas"}
    directory = Path(engines.storage("replicas")["budget_dir"])
    server = serve(engines, "replicas", storage, data_parallel_size=2)
    watch = Watch(directory, "host:replicas", period_s=0.002)
    try:
        answers = asyncio.run(ask(server))
        watch.stop()
        yield Story(answers, watch.peaks, watch.peak_of_all, server.started.run().log)
    finally:
        watch.stop()
        server.started.kill()
    budget = open_device_budget(directory, "host:replicas")
    budget.reap()
    assert budget.rows() == []


async def ask(server: Server) -> list[list[int]]:
    requests = zip(workload.prompts(), workload.output_lengths(), strict=True)
    async with server.client() as client:
        await until(client.is_ready, server.started, "the server is ready")
        return await asyncio.gather(*(client.complete(*r) for r in list(requests)[:COUNT]))


def test_answers_are_upstreams(story: Story, upstream: Run) -> None:
    assert story.answers == upstream["tokens"][:COUNT]


def test_each_is_an_instance_of_its_own(story: Story) -> None:
    assert set(story.peaks) == REPLICAS
    for name in REPLICAS:
        assert f"KV storage: kvcached, engine {name} on budget host:replicas" in story.log


def test_together_they_use_what_neither_could_have_for_itself(story: Story) -> None:
    assert all(peak > 4 * PAGE for peak in story.peaks.values())
    assert sum(story.peaks.values()) > story.peak_of_both
    assert story.peak_of_both <= CAPACITY
