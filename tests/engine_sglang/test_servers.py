"""Servers of one name on one budget, one after the other: requests that are aborted, SIGTERM at
work, SIGKILL at work, and one that sleeps until a neighbour needs memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.neighbour import need_memory
from engine.processes import Run
from engine_sglang.processes import SglangEngines
from engine_sglang.server import Server, serve, tokens
from kvcached_core.budget import Budget, RowInfo

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.conformance("parity")]

MIB = 1 << 20
PAGE = 128 << 10  # 64 tokens of the tiny model
CAPACITY = 4 * MIB
LIMIT = 2 * MIB
AT_REST = 3 * PAGE  # padding's page and the reserve
FLOOR = 1 * MIB
NAME, DEVICE = "server", "host:servers"
DEADLINE_S = 120  # guards against a hang
FEW, MORE = range(20), range(60)


@dataclass
class Story:
    directory: Path
    aborted: list[Any] = field(default_factory=list)
    at_work: int = 0  # bytes mapped while those ran
    looks: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, list[list[int]]] = field(default_factory=dict)
    left: dict[str, list[RowInfo]] = field(default_factory=dict)
    neighbour: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int | None = None
    flushed: int = 0  # status of the answer
    asleep: int = 0  # bytes mapped
    early: bool = True
    segments: dict[str, list[str]] = field(default_factory=dict)

    def rows(self) -> list[RowInfo]:
        return list(Budget.open(str(self.directory), DEVICE, 0, 0).rows())

    def mapped(self) -> int:
        return sum(row.created for row in self.rows())

    def note_end(self, what: str) -> None:
        """What a server that has ended left, and whether a neighbour can have all there is."""
        self.neighbour[what] = need_memory(self.directory, DEVICE, CAPACITY)
        self.left[what] = self.rows()
        found = (self.directory / "instances").iterdir()
        self.segments[what] = [path.name for path in found if not path.name.startswith(".")]


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def story(engines: SglangEngines) -> Iterator[Story]:
    base = engines.storage("servers", capacity=CAPACITY, page_size=PAGE, name=NAME, floor=FLOOR)
    story = Story(Path(base["budget_dir"]))
    servers: list[Server] = []

    def start(name: str, storage: dict[str, Any], **more: Any) -> Server:
        servers.append(serve(engines, name, {**base, **storage}, **more))
        servers[-1].wait_until_ready()
        return servers[-1]

    try:
        first = start("server-1", {"limit": LIMIT, "prefix_bound": "0B"})
        _abort(story, first)
        _terminate(story, first)
        _kill(story, start("server-2", {}))
        _sleep(story, start("server-3", {}, deep_sleep=True, sleep_on_idle=True))
        yield story
    finally:
        for server in servers:
            server.end()


def _abort(story: Story, server: Server) -> None:
    """All requests, once those that run have all memory there is for them."""
    asked = server.ask(FEW, length=90)
    until(lambda: story.mapped() >= LIMIT - PAGE, "requests run in all of the limit")
    story.at_work = story.mapped()
    server.post("/abort_request", {"rid": "", "abort_all": True})
    story.aborted = asked.result()
    until(lambda: story.mapped() <= AT_REST, "what they had is given back")
    story.looks = server.inside()["looks"]
    story.answers["aborted"] = server.tokens(FEW)


def _terminate(story: Story, server: Server) -> None:
    asked = server.ask(FEW)
    until(lambda: story.mapped() > AT_REST, "it works")
    story.flushed = server.status("/flush_cache")
    server.signal(signal.SIGTERM)
    story.answers["terminated"] = tokens(asked.result())
    server.started.wait_for_end()
    story.status = server.started.process.returncode
    story.note_end("terminated")


def _kill(story: Story, server: Server) -> None:
    story.answers["new after SIGTERM"] = server.tokens(FEW)
    asked = server.ask(MORE)
    until(lambda: story.mapped() > LIMIT, "it works")
    server.signal(signal.SIGKILL)
    assert asked.exception() is not None
    server.started.wait_for_end()
    story.note_end("killed")


def _sleep(story: Story, server: Server) -> None:
    story.answers["new after SIGKILL"] = server.tokens(MORE)
    until(lambda: story.mapped() > CAPACITY - MIB, "prefixes")
    story.neighbour["asleep"] = need_memory(story.directory, DEVICE, CAPACITY - FLOOR)
    story.answers["woken"] = server.tokens(MORE)
    tags = {"tags": ["kv_cache"]}
    server.post("/release_memory_occupation", tags)
    asked = server.ask(FEW)
    until(lambda: server.inside()["waiting"] == len(FEW), "they wait")
    story.asleep, story.early = story.mapped(), asked.done()
    server.post("/resume_memory_occupation", tags)
    story.answers["resumed"] = tokens(asked.result())


def test_requests_are_aborted_and_their_pages_come_back_to_the_reserve(story: Story) -> None:
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in story.aborted]
    assert reasons.count("abort") > len(FEW) // 2
    assert LIMIT - PAGE <= story.at_work <= LIMIT
    assert story.looks["count"] > 5 and story.looks["wrong"] == []


def test_prefixes_are_not_dropped_under_load(story: Story) -> None:
    assert story.flushed == 400  # by SGLang; what ran goes on


def test_requests_that_come_while_it_sleeps_wait(story: Story) -> None:
    assert story.asleep == PAGE and not story.early


@pytest.mark.conformance("shutdown")
def test_sigterm_lets_requests_finish(story: Story) -> None:
    assert story.status in (0, -signal.SIGKILL)  # as a server of SGLang's ends itself, by release


@pytest.mark.conformance("shutdown")
@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_an_engine_that_has_ended_leaves_its_memory_to_others(story: Story, how: str) -> None:
    assert story.neighbour[how]["granted"]
    assert story.neighbour[how]["leases"] == {}
    assert story.left[how] == []


@pytest.mark.conformance("shutdown")
def test_only_what_was_killed_leaves_its_segment(story: Story) -> None:
    assert story.segments["terminated"] == []
    assert len(story.segments["killed"]) == 1  # until the next engine starts, which moves it


def test_a_scheduler_that_sleeps_is_woken_by_a_neighbour_s_need(story: Story) -> None:
    found = story.neighbour["asleep"]
    assert found["refused_first"] and found["granted"]
    assert 0 < found["leases"][NAME] <= FLOOR


@pytest.mark.parametrize(
    "when",
    ["aborted", "terminated", "new after SIGTERM", "new after SIGKILL", "woken", "resumed"],
)
def test_answers_are_upstream_s(story: Story, upstream: Run, when: str) -> None:
    answers = story.answers[when]
    assert len(answers) in (len(FEW), len(MORE))
    assert answers == upstream["tokens"][: len(answers)]
