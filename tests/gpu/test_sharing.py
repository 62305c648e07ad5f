"""Two engines on one GPU and budget, each of which alone would use all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine import workload
from engine.device_use import Watch
from engine.processes import DEADLINE_S, Engines, Run
from engine.runner import READY
from gpu.compare import compare_runs
from gpu.conftest import Note
from gpu.scale import SCALE, device_key
from gpu.test_sleep import job

pytestmark = [pytest.mark.gpu]

BUDGET = "sharing"
SHARED = {"budget": BUDGET, "capacity": SCALE.capacity, "page_size": SCALE.page}


@dataclass
class Story:
    first: Run
    second: Run
    watch: Watch


@pytest.fixture(scope="module")
def static(engines: Engines) -> Run:
    return engines.run("static-reference", job(SCALE.many))


@pytest.fixture(scope="module")
def story(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The second one begins when the first has most of the memory and is in the midst of it."""
    folder = tmp_path_factory.mktemp("sharing")
    watch = Watch(Path(engines.storage(BUDGET)["budget_dir"]), device_key(BUDGET))
    started = {
        name: engines.start_elastic(
            f"sharing-{name}",
            {**SHARED, "name": name},
            gate=str(folder / name),
            **job(SCALE.many),
        )
        for name in ("first", "second")
    }
    try:
        for engine in started.values():
            engine.wait_for_log(READY)
        (folder / "first").touch()
        started["first"].wait_until(
            lambda: watch.peaks.get("first", 0) > 2 * SCALE.capacity // 3, "most is its"
        )
        (folder / "second").touch()
        for engine in started.values():
            engine.process.wait(DEADLINE_S)
    finally:
        watch.stop()
        for engine in started.values():
            engine.kill()
    yield Story(started["first"].run(), started["second"].run(), watch)


def test_their_peaks_would_not_fit_together(story: Story, note: Note) -> None:
    peaks = story.watch.peaks
    note(
        "sharing",
        capacity=SCALE.capacity,
        peaks=peaks,
        peak_of_both=story.watch.peak_of_all,
        preemptions=[run["metrics"]["vllm:num_preemptions"] for run in (story.first, story.second)],
        seconds=[run["run_seconds"] for run in (story.first, story.second)],
    )
    assert sum(peaks.values()) > SCALE.capacity >= story.watch.peak_of_all > 0
    assert all(peak > SCALE.capacity // 3 for peak in peaks.values())


def test_each_finishes_all_its_requests(story: Story) -> None:
    lengths = workload.output_lengths(SCALE.many)
    for run in (story.first, story.second):
        assert run.returncode == 0
        assert [len(tokens) for tokens in run["tokens"]] == lengths


def test_their_tokens_are_statics(static: Run, story: Story, note: Note) -> None:
    found = compare_runs(static, story.first, story.second)
    note("tokens of two engines", **found.summary())
    assert found.requests == 2 * SCALE.many
    found.check()
