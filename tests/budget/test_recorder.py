"""The last page transitions of each writer, as they are read from a segment's file."""

from __future__ import annotations

import select
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from budget_peer import PATIENCE_S, environment
from rank_rig import PAGE, eventually, rig

from kvcached_core.budget import Segment, read_segment

RECORDS = 4096
SLOT, RING = 32, 64 + RECORDS * 32  # bytes: see csrc/budget/recorder.h


def ring_at(path: str, writer: int) -> int:
    """Where a writer's ring begins: 0 is the scheduler half, 1 + n rank n; they end the file."""
    ranks = len(read_segment(path)["ranks"])
    return Path(path).stat().st_size - (1 + ranks - writer) * RING


def edges(path: str, who: str | int, last: int = RECORDS) -> list[tuple[Any, ...]]:
    found = [t for t in read_segment(path, last)["transitions"] if t["who"] == who]
    return [(t["page"], t["from"], t["to"], t["epoch"]) for t in found]


def sequences(path: str, who: str | int) -> list[int]:
    found = [t for t in read_segment(path)["transitions"] if t["who"] == who]
    return [t["sequence"] for t in found]


def test_the_life_of_a_page_as_both_halves_saw_it(tmp_path: Path) -> None:
    with rig(tmp_path, capacity=3) as engine:
        member = engine.join()
        engine.grow(1, 2, 3)
        member.rank.make_ready([1, 2])
        engine.segment.record([2], "owned", "retiring", 1)
        engine.retire([2])
        engine.segment.record([2], "retiring", "virtual", 1)
        engine.grow(2)
        member.rank.make_ready([2])
        report = read_segment(engine.path)
        asked = [(page, "virtual", "preparing", 0) for page in (1, 2, 3)]
        owned = [(page, "preparing", "owned", 0) for page in (1, 2)]
        assert edges(engine.path, "scheduler") == [
            *asked,
            *owned,
            (3, "preparing", "virtual", 0),
            (2, "owned", "retiring", 1),
            (2, "retiring", "virtual", 1),
            (2, "virtual", "preparing", 1),
            (2, "preparing", "owned", 1),
        ]
        assert sorted(edges(engine.path, 0)) == sorted(
            [
                (0, "virtual", "mapped", 0),
                *((page, "virtual", "owned", 0) for page in (1, 2)),
                *((page, "owned", "mapped", 0) for page in (1, 2)),
                (2, "mapped", "virtual", 1),
                (2, "virtual", "owned", 1),
                (2, "owned", "mapped", 1),
            ]
        )
        times = [t["time_ns"] for t in report["transitions"]]
        assert times == sorted(times) and times[0] > 0 and times[-1] <= time.monotonic_ns()
        assert (sequences(engine.path, "scheduler"), sequences(engine.path, 0)) == (
            [*range(1, 11)],
            [*range(1, 9)],
        )
        assert report["torn"] == 0 and report["ranks"][0]["pages"] == {
            "virtual": 5,
            "owned": 3,
            "quarantined": 0,
        }
        assert report["ranks"][0]["created_bytes"] == 3 * PAGE


def test_quarantine_is_recorded(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1)
        member.rank.make_ready([1])
        member.driver.fail_always("unmap")
        engine.retire([1])
        assert edges(engine.path, 0)[-1] == (1, "mapped", "quarantined", 1)
        member.driver.reset()
        engine.retire([1])
        assert edges(engine.path, 0)[-1] == (1, "quarantined", "virtual", 2)
        assert read_segment(engine.path)["ranks"][0]["pages"]["quarantined"] == 0


def test_a_steady_step_records_nothing(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1, 2)
        eventually(lambda: member.is_mapped(1) and member.is_mapped(2), "mapped ahead")
        member.rank.make_ready([1, 2])
        before = read_segment(engine.path)["transitions"]
        for _ in range(100):
            member.rank.make_ready([1, 2])
            engine.segment.poll()
            engine.segment.request([])
            engine.segment.record([], "owned", "retiring", 1)
        assert read_segment(engine.path)["transitions"] == before


@pytest.mark.parametrize("count", [0, 1, RECORDS - 1, RECORDS, RECORDS + 1, 3 * RECORDS + 7])
def test_the_newest_are_kept(tmp_path: Path, count: int) -> None:
    path = str(tmp_path / "engine.segment")
    segment = Segment.create(path, 8, 1)
    for at in range(0, count, 100):
        pages = [n % 8 for n in range(at, min(count, at + 100))]
        segment.record(pages, "owned", "retiring", at)
    first = max(1, count - RECORDS + 1)
    assert sequences(path, "scheduler") == [*range(first, count + 1)]
    for transition in read_segment(path)["transitions"]:
        assert transition["page"] == (transition["sequence"] - 1) % 8
    for last in (0, 1, 5):
        found = [t["sequence"] for t in read_segment(path, last)["transitions"]]
        assert found == [*range(max(1, count - last + 1), count + 1)]


@pytest.mark.parametrize("counted", [False, True], ids=["in the middle", "before it counts"])
def test_a_record_that_its_writer_did_not_finish_is_told(tmp_path: Path, counted: bool) -> None:
    path = str(tmp_path / "engine.segment")
    segment = Segment.create(path, 8, 1)
    segment.record([1, 2, 3, 4], "owned", "retiring", 1)
    ring = ring_at(path, 0)
    with Path(path).open("r+b") as file:
        file.seek(ring)
        file.write(struct.pack("Q", 3))  # a writer counts a record last
        if not counted:  # and writes its sequence before that
            file.seek(ring + 64 + 4 * SLOT)
            file.write(struct.pack("Q", 0))
    report = read_segment(path)
    assert report["torn"] == (0 if counted else 1)
    assert sequences(path, "scheduler") == ([1, 2, 3, 4] if counted else [1, 2, 3])
    segment.record([5], "owned", "retiring", 2)
    assert edges(path, "scheduler")[-1] == (5, "owned", "retiring", 2)
    assert read_segment(path)["torn"] == 0


def test_states_are_named(tmp_path: Path) -> None:
    segment = Segment.create(str(tmp_path / "engine.segment"), 8, 1)
    with pytest.raises(ValueError, match="no state 'ready'; allowed are virtual, preparing"):
        segment.record([1], "owned", "ready", 1)  # type: ignore[arg-type]


WRITER = """
import sys
from kvcached_core.budget import Segment
segment = Segment.create(sys.argv[1], 8, 1)
print("ready", flush=True)
epoch = 0
while True:
    epoch += 1
    segment.record([epoch % 8] * 64, "owned", "retiring", epoch)
"""


def overflowed(path: str) -> bool:
    return any(t["sequence"] > RECORDS for t in read_segment(path)["transitions"])


def test_a_kill_tears_at_most_the_record_being_written(tmp_path: Path) -> None:
    for turn in range(8):
        path = str(tmp_path / f"{turn}.segment")
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], PATIENCE_S)[0], "no answer"
            assert process.stdout.readline() == b"ready\n"
            eventually(partial(overflowed, path), "the ring is full")
            time.sleep(turn / 4_000)
            process.send_signal(signal.SIGKILL)
        report = read_segment(path)
        assert report["pid"] == process.pid
        found = report["transitions"]
        assert report["torn"] in (0, 1) and len(found) >= RECORDS - 1
        first = found[0]["sequence"]
        assert [t["sequence"] for t in found] == [*range(first, first + len(found))]
        for transition in found:  # what was written together is read together
            epoch = (transition["sequence"] + 63) // 64
            assert (transition["epoch"], transition["page"]) == (epoch, epoch % 8)
            assert (transition["from"], transition["to"]) == ("owned", "retiring")
