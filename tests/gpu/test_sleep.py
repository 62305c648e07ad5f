"""One engine sleeps and wakes twenty times while its neighbour on the GPU never rests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.beside import ROUND
from engine.device_use import device_used
from engine.processes import DEADLINE_S, Engines, Run
from engine.runner import READY
from gpu.compare import compare
from gpu.conftest import Note
from gpu.load import ENGINE
from gpu.scale import SCALE, device_key
from kvcached_core.budget import Budget, Grant, open_device_budget

pytestmark = [pytest.mark.gpu]

CYCLES = 20
BUDGET = "sleep"
SHARED = {"budget": BUDGET, "capacity": SCALE.capacity, "page_size": SCALE.page}
PLENTY = 1 << 60


def job(count: int, **engine: Any) -> dict[str, Any]:
    return {
        "count": count,
        "logprobs": 2,
        "engine": {**ENGINE, **engine},
        "environment": SCALE.environment,
    }


class Story:
    """Both engines' runs, and what the device and the record had before and after."""

    def __init__(self, engines: Engines, folder: Path) -> None:
        self.directory = Path(engines.storage(BUDGET)["budget_dir"])
        self.key = device_key(BUDGET)
        self.before = device_used(self.key, [])
        stop, gates = folder / "stop", {name: folder / name for name in "ab"}
        busy = {**job(SCALE.many // 2), "busy": str(stop), "gate": str(gates["b"])}
        sleeper = {**job(SCALE.few, **SCALE.sleeper), "cycles": CYCLES, "gate": str(gates["a"])}
        started = {
            "b": engines.start_elastic("busy", {**SHARED, "name": "b"}, **busy),
            "a": engines.start_elastic(
                "sleeper",
                {**SHARED, "name": "a"},
                record=[str(self.directory), self.key],
                **sleeper,
            ),
        }
        try:
            for engine in started.values():
                engine.wait_for_log(READY)
            gates["b"].touch()
            started["b"].wait_for_log(ROUND)  # it has taken what it needs beside its cache
            gates["a"].touch()
            started["a"].process.wait(DEADLINE_S)
            stop.touch()
            started["b"].process.wait(DEADLINE_S)
        finally:
            for engine in started.values():
                engine.kill()
        self.a, self.b = started["a"].run(), started["b"].run()

    @property
    def cycles(self) -> list[dict[str, Any]]:
        return list(self.a["cycles"]["cycles"])


@pytest.fixture(scope="module")
def reference(engines: Engines) -> Run:
    """Static, alone."""
    return engines.run("static-reference", job(SCALE.many))


@pytest.fixture(scope="module")
def story(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    yield Story(engines, tmp_path_factory.mktemp("sleep"))


def test_it_was_beside_a_busy_neighbour(story: Story, note: Note) -> None:
    asleep = [cycle["sleep_s"] for cycle in story.cycles]
    awake = [cycle["wake_s"] for cycle in story.cycles]
    note(
        "sleep and wake",
        cycles=len(story.cycles),
        rounds_of_neighbour=len(story.b["busy"]["rounds"]),
        sleep_s=sorted(asleep)[len(asleep) // 2],
        wake_s=sorted(awake)[len(awake) // 2],
    )
    assert len(story.cycles) == CYCLES
    assert story.b["busy"]["ended"] > story.a["cycles"]["ended"]
    held = [cycle["asleep"]["created"]["b"] for cycle in story.cycles]
    assert max(held) > SCALE.capacity // 2


def test_asleep_it_holds_the_null_page_and_no_weights(story: Story) -> None:
    for cycle in story.cycles:
        asleep, awake = cycle["asleep"], cycle["awake"]
        assert asleep["created"]["a"] == asleep["lease"]["a"] == SCALE.page
        assert asleep["floor"]["a"] == 0 < awake["floor"]["a"]
        assert awake["besides"] - asleep["besides"] >= SCALE.weights


def test_no_byte_leaks_from_cycle_to_cycle(story: Story, note: Note) -> None:
    besides = {
        state: [cycle[state]["besides"] for cycle in story.cycles] for state in ("asleep", "awake")
    }
    note("bytes of the device besides the caches", **besides)
    for values in besides.values():
        assert abs(values[-1] - values[0]) <= SCALE.noise + (SCALE.page if SCALE.noise else 0)


def test_each_time_it_answers_as_static(story: Story, reference: Run, note: Note) -> None:
    rounds = [story.a["tokens"], *(cycle["tokens"] for cycle in story.cycles)]
    found = compare(reference, *map(enumerate, rounds))
    note("tokens after waking", **found.summary())
    assert found.requests == (1 + CYCLES) * SCALE.few
    found.check()


def test_the_neighbour_answers_as_alone(story: Story, reference: Run, note: Note) -> None:
    rounds = [story.b["tokens"], *story.b["busy"]["rounds"]]
    found = compare(reference, *map(enumerate, rounds))
    note("tokens of the neighbour", **found.summary())
    assert found.requests == len(rounds) * (SCALE.many // 2)
    found.check()


def test_in_the_end_all_is_given_back(story: Story) -> None:
    assert [story.a.returncode, story.b.returncode] == [0, 0]
    budget: Budget = open_device_budget(story.directory, story.key)
    assert budget.rows() == [] and budget.created() == 0
    row = budget.join("newcomer", 0, budget.capacity())
    assert budget.lease(row, budget.capacity(), PLENTY, 1000) == Grant.GRANTED
    budget.unlease(row, budget.capacity())
    budget.leave(row)
    end = time.monotonic() + 20  # a GPU's driver tidies up behind a process
    while (after := device_used(story.key, [])) > story.before + SCALE.noise:
        assert time.monotonic() < end, f"{after} bytes are used, {story.before} were before"
        time.sleep(0.1)
