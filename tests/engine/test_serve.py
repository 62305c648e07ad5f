"""`vllm serve` as users run it: started beside two engines, asked, left in the middle, told to end.

The other two are one in two processes, and one in a single process that keeps no prefix and has
little memory. All three start at once on one budget, and work at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import workload
from engine.observe import memfd_bytes
from engine.processes import Engines, Run, Started
from engine.server import Client, Server, serve, until
from kvcached_core.budget import Budget

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity")]

PAGE = 256 << 10
AT_REST = 3 * PAGE  # the null page and the reserve
CAPACITY, LITTLE = 24 * PAGE, 8 * PAGE
ASKED, LATER, FEW = 40, 20, 20
LEAVERS, LONG = 8, 400
MEMBERS = {"server", "pair", "single"}


@dataclass
class Story:
    members: dict[str, int]  # pid by name, when all had started
    answers: list[list[int]]
    promised: int  # tokens that those who left in the middle had asked for
    taken: int  # and had when they left
    made: int  # and that were computed for them in all
    unfinished: float  # requests that the server still knew then
    later: list[list[int]]
    mapped: list[int]  # bytes at rest: after the answers, after those who left, after the last
    returncode: int | None
    left: list[str]  # of the server, when it had ended
    neighbours: dict[str, Run]


@pytest.fixture(scope="module")
def story(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    gate = tmp_path_factory.mktemp("serve") / "gate"
    shared = {"budget": "serve", "capacity": CAPACITY}
    small = {**shared, "name": "single", "prefix_bound": "0B", "limit": LITTLE}
    pair = {**shared, "name": "pair"}
    server = serve(engines, "serve", {**shared, "name": "server", "prefix_bound": "0B"})
    started = {
        "pair": engines.start_elastic("serve-pair", pair, gate=str(gate), count=FEW),
        "single": engines.start_elastic(
            "serve-single", small, gate=str(gate), rest=True, in_process=True
        ),
    }
    try:
        directory = Path(engines.storage("serve")["budget_dir"])
        yield asyncio.run(Teller(server, started, gate, directory).tell())
    finally:
        for engine in (server.started, *started.values()):
            engine.kill()


class Teller:
    def __init__(
        self, server: Server, neighbours: dict[str, Started], gate: Path, directory: Path
    ) -> None:
        self._server, self._neighbours = server, neighbours
        self._gate, self._directory = gate, directory
        self._engine = server.started
        lengths = workload.output_lengths()
        self._requests = list(zip(workload.prompts(), lengths, strict=True))

    async def tell(self) -> Story:
        async with self._server.client() as client:
            await until(client.is_ready, self._engine, "the server is ready")
            await self._each_has_joined()
            members = self._members()
            self._gate.touch()
            answers = await self._ask(client, 0, ASKED)
            await self._neighbours_end()
            mapped = [await self._rest(client)]
            left = await self._leave(client)
            mapped.append(await self._rest(client))
            metrics = await client.metrics()
            later = await self._ask(client, ASKED, ASKED + LATER)
            mapped.append(await self._rest(client))
        ended = self._end()
        runs = {name: engine.run() for name, engine in self._neighbours.items()}
        return Story(members, answers, *left, unfinished(metrics), later, mapped, *ended, runs)

    def _members(self) -> dict[str, int]:
        budget = Budget.open(str(self._directory), "host:serve", 0, 0)
        return {row.instance: row.pid for row in budget.rows()}

    async def _each_has_joined(self) -> None:
        for name, engine in self._neighbours.items():

            async def joined(name: str = name) -> bool:
                return name in self._members()

            await until(joined, engine, f"{name} has joined")

    async def _neighbours_end(self) -> None:
        for engine in self._neighbours.values():
            await asyncio.to_thread(engine.wait_for_end)

    async def _ask(self, client: Client, first: int, last: int) -> list[list[int]]:
        return await asyncio.gather(*(client.complete(*r) for r in self._requests[first:last]))

    async def _leave(self, client: Client) -> tuple[int, int, int]:
        """Tokens promised, taken and computed."""
        short = [prompt for prompt, _ in self._requests if len(prompt) < 100][:LEAVERS]
        before = await client.metrics()
        taken = await asyncio.gather(*(client.leave_early(p, LONG, 3) for p in short))
        await self._nothing_runs(client)
        made = (await client.metrics())[TOKENS] - before[TOKENS]
        return len(short) * LONG, sum(taken), int(made)

    async def _nothing_runs(self, client: Client) -> None:
        async def idle() -> bool:
            return unfinished(await client.metrics()) == 0

        await until(idle, self._engine, "nothing runs")

    async def _rest(self, client: Client) -> int:
        """Bytes mapped once no more than at rest; or, after a while, what they then are."""
        await self._nothing_runs(client)
        for _ in range(500):
            if memfd_bytes(self._engine.process.pid) <= AT_REST:
                break
            await asyncio.sleep(0.02)
        return memfd_bytes(self._engine.process.pid)

    def _end(self) -> tuple[int | None, list[str]]:
        """Exit status after SIGTERM, and what it left."""
        shared = self._engine.shared_memory()
        self._server.terminate()
        self._engine.wait_for_end()
        left: list[Any] = [path for path in shared if path.exists()]
        left += [name for name in self._members() if name == "server"]
        left += self._directory.glob("instances/server.*")
        left += self._directory.glob("postmortem/server.*")
        return self._engine.process.returncode, [str(what) for what in left]


TOKENS = "vllm:generation_tokens_total"


def unfinished(metrics: dict[str, float]) -> float:
    return metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]


# --- three at once ---


def test_engines_that_start_at_once_all_start(story: Story) -> None:
    assert set(story.members) == MEMBERS
    assert len(set(story.members.values())) == len(MEMBERS)
    assert [run.returncode for run in story.neighbours.values()] == [0, 0]


def test_engines_that_work_at_once_answer_as_upstream(story: Story, upstream: Run) -> None:
    assert story.neighbours["pair"]["tokens"] == upstream["tokens"][:FEW]
    assert story.answers == upstream["tokens"][:ASKED]


def test_with_little_memory_and_no_prefixes_one_process_answers_as_upstream(
    story: Story, upstream: Run
) -> None:
    single = story.neighbours["single"]
    assert single["tokens"] == upstream["tokens"]
    assert single["metrics"]["vllm:num_preemptions"] > 0
    assert 0 < single["memory_peak"] <= LITTLE
    assert single["memory_after_run"] == AT_REST


# --- clients that go away ---


def test_clients_left_in_the_middle_of_their_answers(story: Story) -> None:
    assert LEAVERS <= story.taken <= story.made < story.promised


@pytest.mark.conformance("shutdown")
def test_the_blocks_of_clients_that_left_come_back(story: Story) -> None:
    assert story.unfinished == 0
    assert story.mapped == [AT_REST] * 3


def test_later_answers_are_as_upstreams(story: Story, upstream: Run) -> None:
    assert story.later == upstream["tokens"][ASKED : ASKED + LATER]


# --- the end ---


@pytest.mark.conformance("shutdown")
def test_on_sigterm_it_ends_by_itself_and_leaves_nothing(story: Story) -> None:
    assert story.returncode == 0
    assert story.left == []
