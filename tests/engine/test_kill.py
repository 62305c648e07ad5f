"""A whole real engine is killed, twice under one name, beside one that goes on.

First while it starts, then at a random instant of its work: both times all that it held is the
others', and the one that goes on answers as upstream does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from engine.processes import Engines, Run, Started
from engine.runner import READY
from kvcached_core.budget import Budget, RowInfo, read_segment
from kvcached_core.budget.instance import segment_files

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("shutdown")]

MIB = 1 << 20
CAPACITY = 6 * MIB
SHARED = {"budget": "kill", "capacity": CAPACITY}
PLENTY = 2**62  # free bytes of the device: not what limits here
PROMISED_S = 2.0  # then what the dead held is the others'


class Observer:
    """A member of the budget that holds nothing and gives no dead row back once it has joined."""

    def __init__(self, directory: Path, name: str = "observer") -> None:
        """Raises BudgetError while another of that name lives."""
        self._name = name
        self._budget = Budget.open(str(directory), f"host:{SHARED['budget']}", 0, 0)
        self._row = self._budget.join(name, 0, CAPACITY)

    def others(self) -> dict[str, RowInfo]:
        return {r.instance: r for r in self._budget.rows() if r.instance != self._name}

    def holds(self, instance: str, least: int) -> bool:
        row = self.others().get(instance)
        return row is not None and row.created >= least

    def kept(self) -> int:
        """Bytes that the living have or are sure of."""
        return sum(max(row.lease, row.floor) for row in self.others().values())

    def is_whole_without(self, dead: str) -> bool:
        """Whether all that the others, living, do not keep can be had."""
        kept, available = self.kept(), self._budget.available(self._row, PLENTY)
        steady = self.kept() == kept
        return steady and dead not in self.others() and kept + available == CAPACITY

    def seconds_until_whole_without(self, dead: str) -> float:
        began = time.monotonic()
        while not self.is_whole_without(dead):
            waited = time.monotonic() - began
            assert waited < PROMISED_S, (self.others(), self._budget.available(self._row, PLENTY))
            time.sleep(0.001)
        return time.monotonic() - began

    def leave(self) -> None:
        self._budget.leave(self._row)


@dataclass
class Killed:
    log: str
    seconds: float  # from its death until the memory was the others'
    living: set[str]  # members then, beside the observer


@dataclass
class Story:
    starting: Killed
    working: Killed
    floor: int  # of the victim, bytes: never the witness's while it lived
    witness: Run
    directory: Path


def seen(engine: Started, observer: Observer) -> Killed:
    seconds = observer.seconds_until_whole_without("victim")
    return Killed(engine.run().log, seconds, set(observer.others()))


@pytest.fixture(scope="module")
def story(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    instants = random.Random(seed)
    gate = tmp_path_factory.mktemp("kill") / "gate"
    directory = Path(engines.storage("kill")["budget_dir"])
    started: list[Started] = []

    def start(name: str, instance: str, rounds: int) -> Started:
        storage = {**SHARED, "name": instance}
        started.append(engines.start_elastic(name, storage, gate=str(gate), rounds=rounds))
        return started[-1]

    try:
        witness = start("kill-witness", "witness", rounds=1)
        early = start("kill-early", "victim", rounds=0)
        early.wait_for_log("KV storage: kvcached, rank 0 of engine victim")
        time.sleep(instants.uniform(0, 0.05))
        early.kill()
        heir = Observer(directory, "victim")  # the name is free
        starting = seen(early, heir)
        heir.leave()

        victim = start("kill-victim", "victim", rounds=50)
        observer = Observer(directory)
        both = {"witness": witness, "victim": victim}
        wait_until_each_holds(both, observer, 1)
        gate.touch()
        wait_until_each_holds(both, observer, 2 * MIB)
        floor = observer.others()["victim"].floor
        time.sleep(instants.uniform(0, 1))
        victim.kill()
        working = seen(victim, observer)
        observer.leave()
        witness.wait_for_end()
        yield Story(starting, working, floor, witness.run(), directory)
    finally:
        for engine in started:
            engine.kill()


def wait_until_each_holds(engines: dict[str, Started], observer: Observer, least: int) -> None:
    for instance, engine in engines.items():
        holds = partial(observer.holds, instance, least)
        engine.wait_until(holds, f"{instance} holds {least} bytes")


def test_an_engine_killed_while_it_starts_leaves_its_name_and_its_memory(story: Story) -> None:
    print(f"whole again after {story.starting.seconds:.3f} s")
    assert READY not in story.starting.log
    assert story.starting.living <= {"witness"}


def test_what_an_engine_held_that_was_killed_at_work_is_the_others_in_time(story: Story) -> None:
    print(f"whole again after {story.working.seconds:.3f} s")
    assert READY in story.working.log
    assert story.working.living == {"witness"}
    assert story.witness["memory_peak"] > CAPACITY - story.floor > 0


def test_the_other_engine_answers_as_upstream(story: Story, upstream: Run) -> None:
    assert story.witness.returncode == 0
    assert story.witness["tokens"] == upstream["tokens"]
    assert story.witness["tokens_again"] == [upstream["tokens"]]


def test_nothing_is_held_in_the_end(story: Story) -> None:
    last = Observer(story.directory, "last")
    assert last.others() == {}
    assert last.is_whole_without("victim")
    last.leave()


def test_both_left_what_they_did_last(story: Story) -> None:
    reports = [read_segment(str(path)) for path in segment_files(story.directory, "victim")]
    assert len(reports) == 2
    for report in reports:
        assert report["torn"] <= 2  # at most one of each half
        assert [rank["failure"] for rank in report["ranks"]] == [""]
    assert reports[0]["transitions"]
