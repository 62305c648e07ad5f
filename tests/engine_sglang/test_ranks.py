"""Engines of two ranks, by tensor and by pipeline parallelism: tokens are those of upstream at the
same shape, with room for everything and without; a rank that is killed or stops ends the engine,
which gives everything back. All ranks compare their counters behind every step."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Run
from engine_sglang.processes import SglangEngines
from engine_sglang.server import Server, serve, tokens
from engine_sglang.test_elastic import BOLD
from engine_sglang.test_servers import until
from kvcached_core.budget import Budget, Grant, RowInfo

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PAGE = 64 << 10  # 64 tokens at either rank
CAPACITY = 16 << 20
LIMIT = 20 * PAGE  # of a rank, where memory is little
AT_REST = 3 * PAGE  # padding's page and the reserve
ALL, SOME = 100, 40
WATCHDOG_S = 10

TP: dict[str, Any] = {"tp_size": 2, "disable_custom_all_reduce": True}
PP: dict[str, Any] = {"pp_size": 2, "disable_custom_all_reduce": True}
_VARIABLES = {
    "SGLANG_NCCL_SO_PATH": "/nonexistent",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",  # it would be waited for, for a minute
}
TP_VARIABLES = {**_VARIABLES, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
PP_VARIABLES = {**_VARIABLES, "SGLANG_CPU_OMP_THREADS_BIND": "0-1"}


@pytest.fixture(scope="module")
def upstream_tp(engines: SglangEngines) -> Run:
    job = {"engine": TP, "count": ALL, "environment": TP_VARIABLES}
    return engines.run("upstream-tp", job, upstream=True)


@pytest.fixture(scope="module")
def static_tp(engines: SglangEngines) -> Run:
    return engines.run("static-tp", {"engine": TP, "count": SOME, "environment": TP_VARIABLES})


@pytest.fixture(scope="module")
def upstream_pp(engines: SglangEngines) -> Run:
    job = {"engine": PP, "count": SOME, "environment": PP_VARIABLES}
    return engines.run("upstream-pp", job, upstream=True)


@dataclass
class Place:
    """The budget of a server, and what was seen there."""

    name: str
    storage: dict[str, Any]
    answers: dict[str, list[Any]] = field(default_factory=dict)
    created: dict[str, list[int]] = field(default_factory=dict)  # bytes of each rank
    backend: dict[str, Any] = field(default_factory=dict)
    looks: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    status: int | None = None
    seconds: float = 0  # from the harm to the end
    left: list[RowInfo] | None = None
    files: list[str] | None = None

    @property
    def directory(self) -> Path:
        return Path(self.storage["budget_dir"])

    @property
    def budget(self) -> Budget:
        return Budget.open(str(self.directory), f"host:{self.name}", 0, 0)

    def ranks(self) -> list[RowInfo]:
        rows = [row for row in self.budget.rows() if row.instance == self.name]
        return sorted(rows, key=lambda row: row.rank)

    def mapped(self) -> list[int]:
        return [row.created for row in self.ranks()]

    def note(self, when: str) -> None:
        self.created[when] = self.mapped()

    def note_end(self, server: Server, began: float) -> None:
        server.started.wait_for_end()
        self.seconds = time.monotonic() - began
        self.status = server.started.process.returncode
        self.log = server.started.log.read_text(errors="replace")
        self.budget.reap()
        self.left = self.ranks()
        found = (self.directory / "instances").iterdir()
        self.files = [path.name for path in found if path.name.startswith(self.name)]


@contextmanager
def started(
    engines: SglangEngines,
    name: str,
    variables: dict[str, str],
    settings: dict[str, Any],
    **more: Any,
) -> Iterator[tuple[Place, Server]]:
    given = {"page_size": PAGE, "capacity": CAPACITY, "name": name, "check_ranks": "on"}
    place = Place(name, engines.storage(name, **{**given, **settings}))
    server = serve(engines, name, place.storage, environment={**variables, **BOLD}, **more)
    try:
        server.wait_until_ready()
        yield place, server
    finally:
        server.end()


@pytest.fixture(scope="module")
def tp(engines: SglangEngines) -> Place:
    """Room for everything; a neighbour that leaves little; sleep; SIGTERM."""
    with started(engines, "ranks-tp", TP_VARIABLES, {}, max_total_tokens=16 << 10, **TP) as found:
        place, server = found
        place.answers["unbounded"] = server.ask(range(ALL)).result()
        place.note("prefixes")
        budget = place.budget
        row = budget.join("neighbour", 0, CAPACITY, 0, 0, 100)
        take_all_but(budget, row, 2 * LIMIT)
        place.answers["tight"] = server.ask(range(ALL)).result()
        place.note("tight")
        budget.unlease(row, CAPACITY - 2 * LIMIT)
        budget.leave(row)
        server.status("/flush_cache")
        until(lambda: place.mapped() == [AT_REST] * 2, "both ranks rest")
        tags = {"tags": ["kv_cache"]}
        server.post("/release_memory_occupation", tags)
        place.note("asleep")
        server.post("/resume_memory_occupation", tags)
        place.answers["awake"] = server.ask(range(SOME)).result()
        inside = server.inside()
        place.backend, place.looks = inside["backend"], inside["looks"]
        server.signal(signal.SIGTERM)
        place.note_end(server, time.monotonic())
        return place


def take_all_but(budget: Budget, row: int, rest: int) -> None:
    """A neighbour that takes and keeps what the engine does not use."""
    budget.set_want(row, CAPACITY - rest)
    until(
        lambda: budget.lease(row, CAPACITY - rest, 2**62, 100) == Grant.GRANTED,
        "the neighbour has its memory",
    )
    budget.set_want(row, 0)


def harm(place: Place, server: Server, number: signal.Signals, asked: int) -> None:
    """Sends it to any rank while requests run."""
    answers = server.ask(range(asked), length=90)
    until(lambda: min(place.mapped()) > 8 * PAGE, "both ranks work")
    victim = random.Random(time.monotonic_ns()).choice(place.ranks())
    began = time.monotonic()
    os.kill(victim.pid, number)
    place.note_end(server, began)
    assert answers.exception() is not None


@pytest.fixture(scope="module")
def pp(engines: SglangEngines) -> Place:
    """Little memory; then a rank is killed."""
    settings = {"limit": LIMIT, "prefix_bound": "0B"}
    with started(engines, "ranks-pp", PP_VARIABLES, settings, **PP) as (place, server):
        place.answers["tight"] = server.ask(range(SOME)).result()
        inside = server.inside()
        place.backend, place.looks = inside["backend"], inside["looks"]
        harm(place, server, signal.SIGKILL, ALL)
        return place


@pytest.fixture(scope="module")
def stopped(engines: SglangEngines) -> Place:
    """A rank stops for good."""
    more = {**TP, "watchdog_timeout": WATCHDOG_S}
    with started(engines, "ranks-stopped", TP_VARIABLES, {}, **more) as (place, server):
        harm(place, server, signal.SIGSTOP, ALL)
        return place


def retractions(answers: list[Any]) -> int:
    return sum(answer["meta_info"]["num_retractions"] for answer in answers)


def test_tokens_of_static_are_upstreams(static_tp: Run, upstream_tp: Run) -> None:
    assert static_tp["tokens"] == upstream_tp["tokens"][:SOME]
    assert len({tuple(each) for each in upstream_tp["tokens"]}) == ALL


@pytest.mark.parametrize("when", ["unbounded", "tight", "awake"])
def test_tokens_are_upstreams(tp: Place, upstream_tp: Run, when: str) -> None:
    answers = tokens(tp.answers[when])
    assert len(answers) in (ALL, SOME)
    assert answers == upstream_tp["tokens"][: len(answers)]


def test_requests_give_way_where_memory_is_little(tp: Place, pp: Place) -> None:
    assert retractions(tp.answers["unbounded"]) == 0
    assert retractions(tp.answers["tight"]) > 0
    assert retractions(pp.answers["tight"]) > 0


def test_tokens_of_two_stages_are_upstreams(pp: Place, upstream_pp: Run) -> None:
    assert tokens(pp.answers["tight"]) == upstream_pp["tokens"]


def test_memory_follows_use_at_both_ranks(tp: Place) -> None:
    assert min(tp.created["prefixes"]) > 2 * LIMIT
    assert max(tp.created["tight"]) <= LIMIT
    assert tp.created["asleep"] == [PAGE, PAGE]


def test_every_step_was_compared(tp: Place, pp: Place) -> None:
    for place in (tp, pp):
        assert place.backend["steps_compared"] == place.backend["steps"] > 100
        assert place.looks["count"] > 10
        assert place.looks["wrong"] == []


def test_both_ranks_say_what_they_reserved(tp: Place) -> None:
    for rank in (0, 1):
        assert f"KV storage: kvcached, rank {rank} of engine ranks-tp" in tp.log


def test_sigterm_leaves_nothing(tp: Place) -> None:
    assert tp.status == -signal.SIGKILL  # so a server of SGLang's ends itself
    assert tp.left == []
    assert tp.files == []


def test_a_rank_that_is_killed_ends_the_engine(pp: Place) -> None:
    assert pp.status != 0
    assert pp.left == []
    assert pp.seconds < 60


def test_a_rank_that_stops_ends_the_engine(stopped: Place) -> None:
    assert stopped.status != 0
    assert stopped.left == []
    assert stopped.seconds < WATCHDOG_S + 60
